"""A thousand idle workers: what their waiting costs, and how many of them one request wakes.

Each waits as worker/consumer.py does: it takes, finds nothing, blocks in BLPOP at its own bell, and takes again when it
is rung or a second has passed. One request must be given to one of them, wake no other, and not cost more because nine
hundred and ninety-nine others wait too.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass

from loadtest.protocol.rig import MODEL, Rig, command_of, request_ids
from shared import keys
from shared.redis_client import end_tasks

WAIT_S = 1.0  # as worker/consumer.py waits, with its jitter
BURST = 100


@dataclass(frozen=True, slots=True)
class IdleRow:
    """`standing_cpu`: share of a server core that all of them cost while nothing happens, asking each second.

    `burst_heard`: how many were woken for `BURST` requests that came at once.
    """

    num_workers: int
    num_requests: int
    served: int
    rings_heard: int
    most_woken: int
    burst_heard: int
    cpu_us_per_request: float
    standing_cpu: float


class _Idle:
    """Idle workers on raw connections: a thousand clients of the usual kind would be what is measured."""

    def __init__(self, rig: Rig, number: int) -> None:
        self._rig = rig
        self._number = number
        self._asking = asyncio.Semaphore(128)
        self.heard: Counter[str] = Counter()
        self.served: Counter[str] = Counter()
        self.current = ""
        self.taken = asyncio.Event()

    async def run(self) -> list[asyncio.Task[None]]:
        for i in range(self._number):
            await self._rig.queue.register(f"w-{i}", "nonce", b"{}")
        tasks = [asyncio.create_task(self._wait(f"w-{i}")) for i in range(self._number)]
        while (await self._rig.client.info("clients"))["blocked_clients"] < self._number * 0.9:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        return tasks

    async def _wait(self, worker: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._rig.server.port)
        while True:
            if not await self._take(worker):
                seconds = WAIT_S * random.uniform(0.7, 1.0)
                writer.write(command_of("BLPOP", keys.bell(MODEL, worker), f"{seconds:.3f}"))
                if await _reads_a_ring(reader):
                    self.heard[self.current] += 1

    async def _take(self, worker: str) -> int:
        async with self._asking:
            deliveries = (await self._rig.queue.take(worker, "nonce", slots=8, room=10**6)).deliveries
        for delivery in deliveries:
            self.served[delivery.request_id] += 1
            self.taken.set()
        return len(deliveries)


async def _reads_a_ring(reader: asyncio.StreamReader) -> bool:
    """The reply to a BLPOP: an element, or nothing in time."""
    if (await reader.readline()) == b"*-1\r\n":
        return False
    for _ in range(4):
        await reader.readline()
    return True


async def measure_idle(rig: Rig, num_workers: int, num_requests: int) -> IdleRow:
    await rig.empty()
    await rig.client.execute_command("ZREM", keys.lease(MODEL), "w-benchmark")
    idle = _Idle(rig, num_workers)
    tasks = await idle.run()
    started, before = time.monotonic(), await rig.cpu_s()
    await asyncio.sleep(3.0)
    standing = (await rig.cpu_s() - before) / (time.monotonic() - started)
    started, before = time.monotonic(), await rig.cpu_s()
    for request_id in request_ids(num_requests):
        idle.current = request_id
        idle.taken.clear()
        await rig.admit(request_id)
        await asyncio.wait_for(idle.taken.wait(), 10)
    seconds, used = time.monotonic() - started, await rig.cpu_s() - before
    burst_heard = await _burst(rig, idle, request_ids(BURST, num_requests))
    await end_tasks(*tasks)
    heard = [idle.heard[request_id] for request_id in request_ids(num_requests)]
    served = sum(idle.served[request_id] == 1 for request_id in request_ids(num_requests))
    per_request = max(0.0, used - standing * seconds) / num_requests * 1e6
    return IdleRow(num_workers, num_requests, served, sum(heard), max(heard), burst_heard, per_request, standing)


async def _burst(rig: Rig, idle: _Idle, names: list[str]) -> int:
    """All at once; how many were woken until all are taken."""
    idle.current = "burst"
    await asyncio.gather(*(rig.admit(request_id) for request_id in names))
    while not all(idle.served[request_id] for request_id in names):
        idle.taken.clear()
        await asyncio.wait_for(idle.taken.wait(), 10)
    return idle.heard["burst"]
