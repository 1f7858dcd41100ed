"""A fleet of any size over a few processes, and what everything uses: CPU of gateway, workers, Valkey and clients.

A simulated step costs no CPU, so workers are many to a process; what each does about a step (scheduling, frames, the
emit, heartbeats) is the real code and is what limits how many this machine carries.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from loadtest.edge.process import used_by
from loadtest.stack import Stack, child_environment

SLOTS = 8
OPERATOR_KEY = "the load run's own key"


def settings(step_ms: float) -> dict[str, object]:
    """Generous leases: a machine this full pauses processes for seconds, and dead workers are not the subject. Nor are
    deadlines: answers this slow end in bursts, between which a gateway's drain rate says that nothing moves."""
    return {
        "backend": "simulated", "max_num_seqs": SLOTS, "sim_step_us": step_ms * 1000, "sim_prefill_us_per_token": 0,
        "sim_kv_tokens": 4096, "max_waiting": 10_000, "lease_ms": 20_000, "heartbeat_ms": 1000, "log_level": "warning",
        "operator_key": OPERATOR_KEY, "drain_timeout_s": 60, "start_deadline_s": 86_400,
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Meter:
    """Readings that only grow. CPU in seconds."""

    at_s: float
    tokens: float
    gateway_s: float
    workers_s: float
    valkey_s: float
    clients_s: float


@dataclass(frozen=True, slots=True)
class Use:
    """Between two readings: tokens a second, and cores (CPU seconds a second) of each part."""

    tokens_per_s: float
    gateway: float
    workers: float
    valkey: float
    clients: float

    @property
    def cores(self) -> float:
        return self.gateway + self.workers + self.valkey + self.clients


def between(first: Meter, last: Meter) -> Use:
    seconds = last.at_s - first.at_s
    return Use(
        (last.tokens - first.tokens) / seconds, (last.gateway_s - first.gateway_s) / seconds,
        (last.workers_s - first.workers_s) / seconds, (last.valkey_s - first.valkey_s) / seconds,
        (last.clients_s - first.clients_s) / seconds,
    )  # fmt: skip


class Fleet:
    """with Fleet(folder, settings(20), ...) as fleet: fleet.resize(5). One gateway, Valkey, and workers spread evenly
    over the host processes; none at first."""

    def __init__(self, folder: Path, env: Mapping[str, object], *, num_hosts: int, start_s: float) -> None:
        self.stack = stack = Stack(folder, num_workers=0, env=env)
        given = child_environment({"redis_url": stack.valkey.url, "data_dir": stack.directory, **env})
        self._hosts = [_start_host(stack.directory / f"host{i}.log", given, start_s) for i in range(num_hosts)]
        self.tokens = 0.0
        self.size = 0

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for host in self._hosts:
            assert host.stdin is not None
            host.stdin.close()
        for host in self._hosts:
            try:
                host.wait(30)
            except subprocess.TimeoutExpired:
                host.kill()
                host.wait()
            assert host.stdout is not None
            host.stdout.close()
        self.stack.stop()

    def resize(self, number: int) -> None:
        """Returns at once. `tokens` is up to date afterwards."""
        self.size = number
        shares = [number // len(self._hosts) + (i < number % len(self._hosts)) for i in range(len(self._hosts))]
        for host, share in zip(self._hosts, shares, strict=True):
            assert host.stdin is not None
            host.stdin.write(f"{share}\n")
            host.stdin.flush()
        self.tokens = sum(self._answer(host)["tokens"] for host in self._hosts)

    def read(self) -> Meter:
        self.resize(self.size)
        workers_s = sum(used_by(host.pid).cpu_s for host in self._hosts)
        gateway_s = used_by(self.stack.gateway.pid).cpu_s
        valkey_s = used_by(self.stack.valkey.process.pid).cpu_s
        own = os.times()
        return Meter(time.monotonic(), self.tokens, gateway_s, workers_s, valkey_s, own.user + own.system)

    def _answer(self, host: subprocess.Popen[str]) -> dict[str, float]:
        assert host.stdout is not None
        line = host.stdout.readline()
        if not line:
            raise RuntimeError(f"a host of workers has ended:\n{self.stack.logs()}")
        return json.loads(line)


def _start_host(log: Path, env: dict[str, str], start_s: float) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "loadtest.scaling.host", str(start_s)]
    with log.open("ab") as err:
        return subprocess.Popen(
            argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True, bufsize=1
        )
