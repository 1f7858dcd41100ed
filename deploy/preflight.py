"""What must hold before anything is started: a free port, and a data directory that is ours alone.

Each refusal is a ConfigurationError that names the thing, the setting, and the way out.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from pathlib import Path
from types import TracebackType

from shared.errors import ConfigurationError

STALE_WAIT_S = 5.0
POLL_S = 0.05


def check_port(host: str, port: int) -> None:
    """Refuse a port that cannot be bound. `host` may be a name; all its addresses are tried."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ConfigurationError(f"HEADRACE_HOST={host}: no such address ({error.strerror})") from error
    for family, kind, protocol, _, address in addresses:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError as error:
                raise ConfigurationError(_port_fault(host, port, error)) from error


def _port_fault(host: str, port: int, error: OSError) -> str:
    another = f"choose another with --port {port + 1 if port < 65535 else 8000} (or HEADRACE_PORT)"
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use by another program (HEADRACE_PORT): stop it, or {another}"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} may not be used by this user (HEADRACE_PORT): {another}"
    return f"cannot listen on {host}:{port} (HEADRACE_HOST, HEADRACE_PORT): {error.strerror}"


class DataDirectory:
    """Held by one launcher at a time, by a lock on `<data_dir>/lock` that holds its pid.

    The embedded server inherits `lock_fd`, so the lock outlives a launcher killed by force until its server, which
    still writes the append-only file, has ended too.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.valkey = self.path / "valkey"
        self.logs = self.path / "logs"
        self.lock_fd = -1

    def __enter__(self) -> DataDirectory:
        try:
            for directory in (self.path, self.valkey, self.logs):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.lock_fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigurationError(f"HEADRACE_DATA_DIR={self.path} cannot be used: {error.strerror}") from error
        try:
            self._lock()
        except BaseException:
            os.close(self.lock_fd)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self.lock_fd)

    def _lock(self) -> None:
        deadline = time.monotonic() + STALE_WAIT_S
        while not self._try_lock():
            holder = self._holder()
            if holder is not None and _is_running(holder):
                raise ConfigurationError(
                    f"another Headrace (pid {holder}) is running on the data directory {self.path}: stop it, "
                    "or choose another directory with --data-dir (or HEADRACE_DATA_DIR)"
                )
            if time.monotonic() > deadline:
                raise ConfigurationError(
                    f"the server of an earlier run still holds the data directory {self.path}: end it "
                    f"(see {self.logs / 'valkey.log'}), or choose another with --data-dir (or HEADRACE_DATA_DIR)"
                )
            time.sleep(POLL_S)
        os.ftruncate(self.lock_fd, 0)
        os.pwrite(self.lock_fd, f"{os.getpid()}\n".encode(), 0)

    def _try_lock(self) -> bool:
        try:
            fcntl.flock(self.lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _holder(self) -> int | None:
        text = os.pread(self.lock_fd, 32, 0).decode("ascii", "replace").strip()
        return int(text) if text.isdigit() else None


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
