"""A stack that can be broken: a proxy stands between each process and Redis, and before each gateway.

Processes have names (`gateway0`, `worker2`) and keep them over their deaths: `supervise` starts again what died, as a
launcher would, and tells deaths that nobody ordered. Ports stay, so that clients and proxies find the new process.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import subprocess
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import orjson

from loadtest.proxy import Proxy, ProxyThread
from loadtest.stack import Stack
from shared.config import RedisSettings
from shared.operations.desk import Desk
from shared.redis_client import Scripts, connect
from shared.request_queue import Bounds

# Short clocks, so that what takes a lease to find shows in seconds; not so short that two noisy cores look dead.
CLOCKS: dict[str, object] = {
    "lease_ms": 3000, "heartbeat_ms": 500, "reap_ms": 700, "check_ms": 400, "orphan_grace_ms": 5000,
    "redis_timeout_s": 2, "keepalive_s": 2, "drain_timeout_s": 2,
}  # fmt: skip
SIMULATED: dict[str, object] = {
    "backend": "simulated", "sim_step_us": 40_000, "sim_prefill_us_per_token": 50, "sim_kv_tokens": 4096,
    "max_num_seqs": 24,
}  # fmt: skip
LEASE_S = 3.0
_RESTART_AFTER_S = 0.3
_SUPERVISE_S = 0.1


@dataclass(frozen=True, slots=True)
class Death:
    """A process that ended though nobody ordered it. `failpoint` names the failpoint that killed it, if one did."""

    name: str
    code: int
    failpoint: str
    last_line: str
    at: float = field(default_factory=time.monotonic)


class Fleet(Stack):
    """`failpoints` maps a process to what is armed in it at each start, `{start}` standing for a number of its own."""

    def __init__(
        self, directory: Path, *, num_workers: int, num_gateways: int, env: Mapping[str, object],
        failpoints: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.proxies = ProxyThread()
        self.redis: dict[str, Proxy] = {}
        self.fronts: dict[str, Proxy] = {}
        self.failpoints = dict(failpoints or {})
        self.deaths: list[Death] = []
        self._num_starts = 0
        self._ordered: set[int] = set()
        self._held: set[str] = set()
        super().__init__(directory, num_workers=num_workers, num_gateways=num_gateways, env=env)
        for index, port in enumerate(self.ports):
            self.fronts[f"gateway{index}"] = self.proxies.open(port)

    @property
    def names(self) -> list[str]:
        return [*self.gateway_names, *self.worker_names]

    @property
    def gateway_names(self) -> list[str]:
        return [f"gateway{index}" for index in range(len(self.gateways))]

    @property
    def worker_names(self) -> list[str]:
        return [f"worker{index}" for index in range(len(self.workers))]

    @property
    def client_ports(self) -> list[int]:
        """Where clients connect: the proxies before the gateways."""
        return [self.fronts[name].port for name in self.gateway_names]

    def settings_of(self, name: str) -> dict[str, object]:
        if name not in self.redis:
            self.redis[name] = self.proxies.open(self.valkey.port)
        self._num_starts += 1
        armed = self.failpoints.get(name, "").replace("{start}", str(self._num_starts))
        url = f"redis://127.0.0.1:{self.redis[name].port}/0"
        return {"redis_url": url, **({"faults": armed, "allow_faults": True} if armed else {})}

    def process(self, name: str) -> subprocess.Popen[bytes]:
        kind, index = name.rstrip("0123456789"), int(name.lstrip("abcdefghijklmnopqrstuvwxyz"))
        return (self.gateways if kind == "gateway" else self.workers)[index]

    def kill(self, *names: str) -> None:
        """SIGKILL, all at once; `supervise` starts them again."""
        for name in names:
            self._ordered.add(self.process(name).pid)
            self.process(name).kill()

    def drain(self, name: str, *, is_hurried: bool) -> None:
        """SIGTERM; a second one gives everything back at once."""
        process = self.process(name)
        self._ordered.add(process.pid)
        process.terminate()
        if is_hurried:
            process.send_signal(signal.SIGTERM)

    def hold(self, name: str) -> None:
        """Not started again until `let_go`."""
        self._held.add(name)

    def let_go(self, name: str) -> None:
        self._held.discard(name)

    async def is_whole(self, client: httpx.AsyncClient) -> bool:
        """Every process runs and was not told to end, and every gateway sees every worker."""
        processes = [self.process(name) for name in self.names]
        if any(process.poll() is not None or process.pid in self._ordered for process in processes):
            return False
        ready = f"/health/ready?min_workers={len(self.workers)}"
        try:
            return all([(await client.get(url + ready)).is_success for url in self.base_urls])
        except httpx.HTTPError:
            return False

    @contextlib.asynccontextmanager
    async def desk(self) -> AsyncGenerator[Desk]:
        """An operator's, at the server itself."""
        scripts = Scripts(connect(RedisSettings(redis_url=self.valkey.url)))
        try:
            yield Desk(scripts, RedisSettings(), Bounds(0, 0, 0))
        finally:
            await scripts.client.aclose()

    def heal(self) -> None:
        """Every proxy carries again, every stopped process goes on, every dead one is started."""
        for proxy in (*self.redis.values(), *self.fronts.values()):
            proxy.heal()
        self._held.clear()
        for name in self.names:
            self.process(name).send_signal(signal.SIGCONT)

    async def supervise(self) -> None:
        """Until cancelled."""
        died: dict[str, float] = {}
        while True:
            for name in self.names:
                process = self.process(name)
                if process.poll() is None or name in self._held:
                    continue
                if name not in died:
                    died[name] = time.monotonic()
                    self._note_death(name, process)
                elif time.monotonic() - died[name] > _RESTART_AFTER_S:
                    del died[name]
                    self._start_again(name)
            await asyncio.sleep(_SUPERVISE_S)

    def stop(self) -> list[int]:
        for name in self.names if hasattr(self, "workers") else []:
            self.process(name).send_signal(signal.SIGCONT)
        unwilling = super().stop()
        self.proxies.stop()
        return unwilling

    def struck(self) -> dict[str, int]:
        """How often each failpoint struck, from the logs."""
        counted: dict[str, int] = {}
        for path in self.directory.glob("*.log"):
            for line in path.read_bytes().splitlines():
                if b'"event":"fault_injected"' in line:
                    kind = str(orjson.loads(line)["kind"])
                    counted[kind] = counted.get(kind, 0) + 1
        return counted

    def _note_death(self, name: str, process: subprocess.Popen[bytes]) -> None:
        # Code -15: told to stop before it could listen for that, and so before it held anything.
        if process.pid in self._ordered and process.returncode in (-9, -15, 0):
            return
        last = (self.directory / f"{name}.log").read_text().rstrip().rpartition("\n")[2]
        killed_by = re.search(r'"event":"fault_injected".*"kind":"(\w+:kill)"', last)
        failpoint = killed_by.group(1) if killed_by and process.returncode == -9 else ""
        self.deaths.append(Death(name, process.returncode, failpoint, last[-400:]))

    def _start_again(self, name: str) -> None:
        index = int(name.lstrip("abcdefghijklmnopqrstuvwxyz"))
        if name in self.gateway_names:
            self.gateways[index] = self.start_gateway(index)
        else:
            self.workers[index] = self.start_worker(name)
