"""How long one call holds the server that gives back what a dead worker ran: reap works in pages for that.

The worker dies in the middle of all its answers, and others idle, so that each request that goes back also rings.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

from loadtest.protocol.emitting import FRAMES, start_requests
from loadtest.protocol.rig import MODEL, WORKER, Rig
from shared import keys
from shared.request_queue import Reaped

STEPS = 20
IDLE = 100


@dataclass(frozen=True, slots=True)
class ReapRow:
    """`dearest_us`: of the calls of one round the dearest, in CPU of the server; the median of the rounds."""

    num_running: int
    num_calls: int
    dearest_us: float


async def measure_reap(rig: Rig, num_running: int, *, rounds: int) -> ReapRow:
    dearest: list[float] = []
    calls: list[float] = []
    for _ in range(rounds):
        await _let_die(rig, num_running)
        calls = await _reap(rig, num_running)
        dearest.append(max(calls))
    return ReapRow(num_running, len(calls), statistics.median(dearest))


async def _reap(rig: Rig, num_running: int) -> list[float]:
    replies = [Reaped(has_more=True)]

    async def call() -> None:
        replies.append(await rig.queue.reap((), max_crashes=3))

    costs: list[float] = []
    while replies[-1].has_more:
        costs.append((await rig.measure("evalsha", 1, call)).cpu_us)
    assert sum(reply.requeued for reply in replies) == num_running
    return costs


async def _let_die(rig: Rig, num_running: int) -> None:
    step = await start_requests(rig, num_running, num_tenants=4)
    for number in range(STEPS):
        emitted = await rig.stream.emit(*WORKER, [replace(e, offset=e.offset + number * len(FRAMES)) for e in step])
        assert emitted.is_published, emitted
    for i in range(IDLE):
        await rig.queue.register(f"w-{i}", "nonce", b"{}")
        await rig.queue.take(f"w-{i}", "nonce", slots=8, room=10**6)
    seconds, micros = await rig.client.time()
    grace_is_over = {"reaped_at": seconds * 1000 + micros // 1000, "grace_until": 0}
    await rig.client.hset(keys.counts(MODEL), mapping=grace_is_over)
    await rig.client.zadd(keys.lease(MODEL), {WORKER[0]: 1})
