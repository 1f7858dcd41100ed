"""What lanes cost the server: an admission that looks for its prefixes, a take out of turn, one that may have nothing.

The prompts are as long as their hashes are many (2,048 tokens, 45 beginnings), what is remembered is nearly full.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from loadtest.protocol.rig import MODEL, NO_BOUNDS, WORKER, Rig, request_ids
from shared import keys
from shared.request_queue import Ticket
from shared.text.prefixes import NO_PREFIXES, Prefixes, prefixes_of

BATCH, PROMPT_TOKENS = 100, 2048
REMEMBERED, PAGE = 49_000, 1000
DEEP, TENANTS = 16, 8  # what one take looks at
OTHERS = ("w-one", "w-two", "w-three")
LANE_MS = 60_000
OLD_S = 0.15  # after which a worker may take more than its share
PREFIXES = prefixes_of(range(PROMPT_TOKENS), "t")


@dataclass(frozen=True, slots=True)
class LaneRow:
    """Microseconds in the script: of admissions and takes where nothing has prefixes; where all have, and are kept for
    the worker that takes; where each overtakes as many as one may; and of a take to which nothing is left."""

    admit_us: float
    take_us: float
    kept_admit_us: float
    kept_take_us: float
    overtaking_take_us: float
    nothing_left_us: float


async def measure_lanes(rig: Rig, *, rounds: int) -> LaneRow:
    costs = [await _round(rig, number) for number in range(rounds)]
    return LaneRow(*(min(column) for column in zip(*costs, strict=True)))


async def _round(rig: Rig, number: int) -> tuple[float, ...]:
    await rig.empty()
    for worker in OTHERS:
        await rig.queue.register(worker, "nonce", b"{}")
    for first in range(0, REMEMBERED, PAGE):
        known = {f"{first + i:010x}": OTHERS[0] for i in range(PAGE)}
        await rig.client.hset(keys.seen(MODEL), mapping=known)
    plain = await _both(rig, number * 10, NO_PREFIXES)
    await rig.client.hset(keys.seen(MODEL), PREFIXES.asked[-1], WORKER[0])
    kept = await _both(rig, number * 10 + 1, PREFIXES)
    overtaking = await _overtaking(rig, number * 10 + 2)
    return *plain, *kept, overtaking, await _nothing_left(rig, number * 10 + 4)


async def _both(rig: Rig, batch: int, prefixes: Prefixes) -> tuple[float, float]:
    """Admitted each to a tenant of its own, and taken one a call."""
    ids = request_ids(BATCH, batch * BATCH)
    admit = await rig.measure("evalsha", BATCH, lambda: _admit(rig, ids, prefixes, BATCH))
    await asyncio.sleep(OLD_S)
    take = await rig.measure("evalsha", BATCH, lambda: _take(rig, BATCH))
    return admit.script_us, take.script_us


async def _overtaking(rig: Rig, batch: int) -> float:
    """Behind fifteen of the same tenant there is one that is kept for this worker."""
    await _begin_anew(rig)
    ids = request_ids(DEEP * TENANTS, batch * BATCH)
    for i in range(0, len(ids), DEEP):
        tenant = f"behind-{i}"
        for request_id in ids[i : i + DEEP - 1]:
            await rig.queue.admit(_ticket(request_id, tenant, NO_PREFIXES), b"body", NO_BOUNDS, gateway="g-one")
        await rig.queue.admit(_ticket(ids[i + DEEP - 1], tenant, PREFIXES), b"body", NO_BOUNDS, gateway="g-one")
    await asyncio.sleep(OLD_S)
    return (await rig.measure("evalsha", TENANTS, lambda: _take(rig, TENANTS))).script_us


async def _nothing_left(rig: Rig, batch: int) -> float:
    """All that a take looks at is kept for another worker."""
    await _begin_anew(rig)
    await rig.client.hset(keys.seen(MODEL), PREFIXES.asked[0], WORKER[0])
    await rig.client.hset(keys.counts(MODEL), "running", 10**6)  # so that no lane is too long
    await _admit(rig, request_ids(DEEP * TENANTS, batch * BATCH), PREFIXES, TENANTS)

    async def ask() -> None:
        for _ in range(BATCH):
            assert not (await rig.queue.take(OTHERS[1], "nonce", slots=1, room=10**9)).deliveries

    return (await rig.measure("evalsha", BATCH, ask)).script_us


async def _begin_anew(rig: Rig) -> None:
    """What runs and waits is forgotten; what is remembered stays."""
    kept = await rig.client.dump(keys.seen(MODEL))
    await rig.empty()
    for worker in OTHERS:
        await rig.queue.register(worker, "nonce", b"{}")
    await rig.client.restore(keys.seen(MODEL), 0, kept)


async def _admit(rig: Rig, ids: list[str], prefixes: Prefixes, num_tenants: int) -> None:
    for i, request_id in enumerate(ids):
        await rig.queue.admit(
            _ticket(request_id, f"t-{i % num_tenants}", prefixes), b"body", NO_BOUNDS, gateway="g-one"
        )


async def _take(rig: Rig, number: int) -> None:
    for _ in range(number):
        assert len((await rig.queue.take(*WORKER, slots=1, room=10**9)).deliveries) == 1


def _ticket(request_id: str, tenant: str, prefixes: Prefixes) -> Ticket:
    return Ticket(
        request_id, "default", tenant, prompt_tokens=PROMPT_TOKENS, max_tokens=512, n=1, start_deadline_ms=600_000,
        lane_ms=LANE_MS, prefixes=prefixes,
    )  # fmt: skip
