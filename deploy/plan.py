"""What `headrace up` starts, decided before anything runs: pure functions from settings to process specs.

A child gets its settings only through HEADRACE_ variables, so that what the launcher starts is what a container or
an init system would start.
"""

from __future__ import annotations

import ipaddress
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy import valkey
from deploy.doctor import cores
from deploy.preflight import DataDirectory
from deploy.process import ProcessSpec
from shared.config import LauncherSettings

GATEWAY = (sys.executable, "-m", "gateway.app")
WORKER = (sys.executable, "-m", "worker.service")
CHAOS = (sys.executable, "-m", "loadtest", "chaos")


@dataclass(frozen=True)
class Commands:
    """The services' command lines (tests put small stand-ins here), threads a worker (0: it decides), and the
    workers' cores and what their names begin with."""

    gateway: Sequence[str] = GATEWAY
    worker: Sequence[str] = WORKER
    worker_threads: int = 0
    cpu_sets: Sequence[str] = ()
    worker_name: str = ""


@dataclass(frozen=True)
class Plan:
    """`server` is None when a Redis URL was given. `ready_url` answers 200 once requests can be served."""

    server: ProcessSpec | None
    server_port: int
    redis_url: str
    services: tuple[ProcessSpec, ...]
    base_url: str
    ready_url: str
    logs: Path

    @property
    def processes(self) -> tuple[ProcessSpec, ...]:
        return self.services if self.server is None else (self.server, *self.services)


def make_plan(settings: LauncherSettings, data: DataDirectory, commands: Commands) -> Plan:
    server, port, redis_url = None, 0, settings.redis_url
    if not redis_url:
        port = valkey.choose_port()
        redis_url = valkey.url(port)
        server = _server_spec(data, port)
    base_url = f"http://{_reachable_host(settings.host)}:{settings.port}"
    # Without a worker of ours there may be no model at all, and then the gateway never calls itself ready.
    health = f"ready?min_workers={settings.workers}" if settings.workers else "live"
    return Plan(
        server=server,
        server_port=port,
        redis_url=redis_url,
        services=(
            _gateway_spec(settings, data, redis_url, commands.gateway),
            *(
                _worker_spec(settings, data.logs, redis_url, commands, number)
                for number in range(1, settings.workers + 1)
            ),
        ),
        base_url=base_url,
        ready_url=f"{base_url}/health/{health}",
        logs=data.logs,
    )


def _server_spec(data: DataDirectory, port: int) -> ProcessSpec:
    return ProcessSpec(
        name="valkey",
        argv=valkey.server_argv(valkey.server_binary(), port, data.valkey),
        log_path=data.logs / "valkey.log",
        death_signal=signal.SIGTERM,
        inherited_fds=(data.lock_fd,),
    )


def _gateway_spec(settings: LauncherSettings, data: DataDirectory, redis_url: str, argv: Sequence[str]) -> ProcessSpec:
    return ProcessSpec(
        name="gateway",
        argv=argv,
        log_path=data.logs / "gateway.log",
        environment={
            "HEADRACE_REDIS_URL": redis_url,
            "HEADRACE_HOST": settings.host,
            "HEADRACE_PORT": str(settings.port),
            "HEADRACE_DATA_DIR": str(data.path),
        },
    )


def _worker_spec(
    settings: LauncherSettings, logs: Path, redis_url: str, commands: Commands, number: int
) -> ProcessSpec:
    added = {"HEADRACE_THREADS": str(commands.worker_threads)} if commands.worker_threads else {}
    if commands.cpu_sets:
        added["HEADRACE_CPU_SET"] = commands.cpu_sets[number - 1]
    if commands.worker_name:
        added["HEADRACE_WORKER_NAME"] = f"{commands.worker_name}-{number}"
    return ProcessSpec(
        name=f"worker-{number}",
        argv=commands.worker,
        log_path=logs / f"worker-{number}.log",
        environment={
            "HEADRACE_REDIS_URL": redis_url,
            "HEADRACE_MODEL": settings.model,
            "HEADRACE_DRAIN_TIMEOUT_S": str(settings.drain_timeout_s),
            **added,
        },
    )


def share_of_cores(workers: int) -> int:
    """Threads for each of several workers on this machine, so that they do not fight for its cores; 0 for one."""
    return 0 if workers < 2 else max(1, int(cores.usable()) // workers)


def _reachable_host(host: str) -> str:
    """The address a client on this machine uses for a server bound to `host`; IPv6 in brackets."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "[::1]"
    return host if address.version == 4 else f"[{host}]"
