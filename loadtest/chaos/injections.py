"""Every fault that a storm and the drills can cause, by name: one method each, which returns when it is over.

A fault heals by itself: what was stopped goes on, what was cut may connect again; what was killed is started by the
fleet. Directed at one process (drawn by the seed) or at the server all share.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from loadtest.chaos.fleet import LEASE_S, Fleet
from shared.redis_client import AWAY

# name -> how often, in parts of all
WEIGHTS: dict[str, float] = {
    "worker_kill": 5, "workers_kill_all": 1, "worker_stop": 4, "worker_drain": 3, "worker_release": 2,
    "worker_drain_cut_off": 1, "gateway_kill": 3, "gateway_stop": 2, "gateway_drain": 1, "worker_and_gateway_kill": 1,
    "client_cut": 2, "client_slow": 1,
    "redis_cut": 3, "redis_reset": 2, "redis_blackhole": 3, "redis_blackhole_past_lease": 1, "redis_delay": 3,
    "redis_throttle": 1, "subscriber_dropped": 1,
    "redis_kill": 2, "redis_power_loss": 1, "script_flush": 2, "client_kill": 2, "client_pause": 2, "memory_full": 1,
    "model_pause": 1,
}  # fmt: skip


class Injector:
    """`kinds` by name. Faults of the server take turns; all others may overlap.

    Of `model_pause`: `in_effect` is set when the model is paused, `over_at` when it is about to be resumed.
    """

    def __init__(self, fleet: Fleet, rng: random.Random) -> None:
        self._fleet = fleet
        self._rng = rng
        self._server = asyncio.Lock()
        self._target = ""
        self.in_effect = asyncio.Event()
        self.over_at = 0.0
        self.kinds: dict[str, Callable[[], Awaitable[str]]] = {name: getattr(self, f"_{name}") for name in WEIGHTS}

    async def inject(self, kind: str, target: str = "") -> str:
        """What was hit, in words. `target` names a process; otherwise the seed draws one."""
        self._target = target
        return await self.kinds[kind]()

    def _worker(self) -> str:
        return self._target or self._rng.choice(self._fleet.worker_names)

    def _gateway(self) -> str:
        return self._target or self._rng.choice(self._fleet.gateway_names)

    # processes

    async def _worker_kill(self) -> str:
        name = self._worker()
        self._fleet.kill(name)
        return name

    async def _workers_kill_all(self) -> str:
        self._fleet.kill(*self._fleet.worker_names)
        return "all workers"

    async def _worker_stop(self) -> str:
        return await self._stop_past_lease(self._worker())

    async def _worker_drain(self) -> str:
        return await self._drain(is_hurried=False)

    async def _worker_release(self) -> str:
        return await self._drain(is_hurried=True)

    async def _worker_drain_cut_off(self) -> str:
        """Told to stop while it cannot reach Redis."""
        name = self._worker()
        self._fleet.redis[name].refuse(is_on=True)
        self._fleet.drain(name, is_hurried=True)
        await asyncio.sleep(LEASE_S * self._rng.uniform(0.5, 1.5))
        self._fleet.redis[name].refuse(is_on=False)
        return name

    async def _gateway_kill(self) -> str:
        name = self._gateway()
        self._fleet.kill(name)
        return name

    async def _gateway_stop(self) -> str:
        return await self._stop_past_lease(self._gateway())

    async def _gateway_drain(self) -> str:
        name = self._gateway()
        self._fleet.drain(name, is_hurried=False)
        return name

    async def _worker_and_gateway_kill(self) -> str:
        names = self._rng.choice(self._fleet.worker_names), self._gateway()
        self._fleet.kill(*names)
        return " and ".join(names)

    async def _drain(self, *, is_hurried: bool) -> str:
        name = self._worker()
        self._fleet.drain(name, is_hurried=is_hurried)
        return name

    async def _stop_past_lease(self, name: str) -> str:
        """The very process that was stopped goes on: by then another may have its name."""
        process = self._fleet.process(name)
        process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(LEASE_S * self._rng.uniform(1.2, 1.8))
        finally:
            process.send_signal(signal.SIGCONT)
        return name

    # connections

    async def _client_cut(self) -> str:
        name = self._gateway()
        self._fleet.fronts[name].reset()
        return f"clients of {name}"

    async def _client_slow(self) -> str:
        name = self._gateway()
        self._fleet.fronts[name].throttle(20_000)
        await asyncio.sleep(self._rng.uniform(1, 3))
        self._fleet.fronts[name].throttle(0)
        return f"clients of {name}"

    async def _redis_cut(self) -> str:
        name = self._target or self._rng.choice(self._fleet.names)
        self._fleet.redis[name].refuse(is_on=True)
        await asyncio.sleep(self._rng.uniform(0, 2))
        self._fleet.redis[name].refuse(is_on=False)
        return name

    async def _redis_reset(self) -> str:
        name = self._target or self._rng.choice(self._fleet.names)
        self._fleet.redis[name].reset()
        return name

    async def _redis_blackhole(self) -> str:
        name = self._target or self._rng.choice(self._fleet.names)
        self._fleet.redis[name].blackhole(is_on=True)
        await asyncio.sleep(LEASE_S * self._rng.uniform(0.3, 1.6))
        self._fleet.redis[name].blackhole(is_on=False)
        return name

    async def _redis_blackhole_past_lease(self) -> str:
        """Long enough for a worker's lease to run out and for its engine to be held back."""
        name = self._worker()
        self._fleet.redis[name].blackhole(is_on=True)
        await asyncio.sleep(LEASE_S * 2)
        self._fleet.redis[name].blackhole(is_on=False)
        return name

    async def _redis_delay(self) -> str:
        name = self._target or self._rng.choice(self._fleet.names)
        self._fleet.redis[name].delay(self._rng.uniform(20, 300))
        await asyncio.sleep(self._rng.uniform(1, 4))
        self._fleet.redis[name].delay(0)
        return name

    async def _redis_throttle(self) -> str:
        name = self._target or self._rng.choice(self._fleet.names)
        self._fleet.redis[name].throttle(100_000)
        await asyncio.sleep(self._rng.uniform(1, 3))
        self._fleet.redis[name].throttle(0)
        return name

    # the server

    async def _redis_kill(self) -> str:
        async with self._server:
            await asyncio.to_thread(self._restart, 0)
        return "kill -9, restarted on its file"

    async def _redis_power_loss(self) -> str:
        """The end of the append-only file, about what a second writes, is gone as well."""
        async with self._server:
            num_bytes = self._rng.randint(1, 200_000)
            await asyncio.to_thread(self._restart, num_bytes)
            # What is lost may be that somebody resumed a model: an operator looks.
            await self._resume()
        return f"{num_bytes} bytes of its file lost"

    async def _script_flush(self) -> str:
        return await self._command("SCRIPT", "FLUSH")

    async def _client_kill(self) -> str:
        return await self._command("CLIENT", "KILL", "TYPE", self._rng.choice(("normal", "pubsub")))

    async def _client_pause(self) -> str:
        pause_ms = self._rng.randint(500, 4000)
        return await self._command("CLIENT", "PAUSE", str(pause_ms), self._rng.choice(("ALL", "WRITE")))

    async def _subscriber_dropped(self) -> str:
        """A gateway that does not read is dropped by the server's output buffer limit."""
        limit = ("CONFIG", "SET", "client-output-buffer-limit")
        await self._command(*limit, "pubsub 16kb 16kb 1")
        name = await self._stop_past_lease(self._gateway())
        await self._command(*limit, "pubsub 64mb 32mb 30")
        return name

    async def _memory_full(self) -> str:
        async with self._server:
            await self._command("CONFIG", "SET", "maxmemory", "1mb")
            await asyncio.sleep(self._rng.uniform(1, 3))
            await self._command("CONFIG", "SET", "maxmemory", "0")
        return "for seconds"

    async def _model_pause(self) -> str:
        """An operator's: what runs goes on, what comes waits."""
        async with self._server:
            async with self._fleet.desk() as desk:
                await desk.pause("", by="storm", why="to see who waits")
            self.in_effect.set()
            await asyncio.sleep(LEASE_S * self._rng.uniform(0.8, 1.2))
            self.over_at = time.monotonic()
            await self._resume()
        return "all models"

    async def _resume(self) -> None:
        """Until it was heard."""
        while True:
            try:
                async with self._fleet.desk() as desk:
                    await desk.resume("", by="storm")
                return
            except AWAY:
                await asyncio.sleep(0.1)

    def _restart(self, num_bytes_lost: int) -> None:
        """Blocking: in a thread."""
        server = self._fleet.valkey
        server.kill()
        if num_bytes_lost:
            _cut_tail(server.directory, num_bytes_lost)
        server.start()

    async def _command(self, *words: str) -> str:
        """One command to the server itself, on a connection of its own; a server that is away is no fault of ours."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(10):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._fleet.valkey.port)
                parts = [f"${len(word)}\r\n{word}\r\n" for word in words]
                writer.write(f"*{len(words)}\r\n{''.join(parts)}".encode())
                await reader.readline()
                writer.close()
        return " ".join(words)


def _cut_tail(directory: Path, num_bytes: int) -> None:
    """As a power cut would: never into the base file, which is flushed whole."""
    path = max(directory.glob("appendonlydir/*.incr.aof"), key=lambda file: file.stat().st_mtime)
    os.truncate(path, max(0, path.stat().st_size - num_bytes))
