"""A request the engine failed goes back, blamed as for a crash; a quarantined worker is seen while it speaks."""

from __future__ import annotations

import msgspec

from shared import keys
from shared.registry import Registry
from shared.request_queue import Delivery
from shared.schemas import WorkerInfo
from tests.integration.queue_actors import MODEL, Actors, tokens

SAID = msgspec.json.encode(
    {
        "info": WorkerInfo(worker_id="w9", model=MODEL, backend="none", host="h", pid=1, max_num_seqs=8, kv_blocks=64),
        "why": "NaN",
    }
)


async def crashes(actors: Actors) -> int:
    return int(await actors.scripts.client.hget(keys.request(MODEL, "r1"), "crashes") or 0)


async def give_back(actors: Actors, delivery: Delivery, *, max_crashes: int) -> bool:
    return await actors.queue.release("r1", delivery.owner, max_crashes=max_crashes)


async def test_it_is_blamed_only_if_its_journal_did_not_grow(actors: Actors) -> None:
    delivery = await actors.begin()
    assert await give_back(actors, delivery, max_crashes=3) and await crashes(actors) == 1
    again = await actors.take_one("w1")
    await actors.emit("w1", again, tokens(7))
    assert await give_back(actors, again, max_crashes=3) and await crashes(actors) == 1
    assert await actors.problems() == []


async def test_a_repeat_of_a_lost_reply_is_blamed_once(actors: Actors) -> None:
    delivery = await actors.begin()
    await give_back(actors, delivery, max_crashes=3)
    assert not await give_back(actors, delivery, max_crashes=3) and await crashes(actors) == 1


async def test_too_often_is_a_dead_letter_and_without_blame_it_never_is(actors: Actors) -> None:
    delivery = await actors.begin()
    for _ in range(4):
        await give_back(actors, delivery, max_crashes=0)
        delivery = await actors.take_one("w1")
    await give_back(actors, delivery, max_crashes=1)
    assert await actors.state("r1") == "waiting"
    await give_back(actors, await actors.take_one("w1"), max_crashes=1)
    assert await actors.state("r1") == "dead" and await actors.problems() == []


async def test_a_quarantined_worker_is_seen_with_its_reason_and_is_no_live_one(actors: Actors) -> None:
    registry = Registry(actors.scripts)
    await actors.queue.quarantine("w9", SAID, keep_ms=60_000)
    (row,) = await registry.workers(MODEL)
    assert (row.worker_id, row.state, row.why, row.num_owned) == ("w9", "quarantined", "NaN", 0)
    assert await registry.num_live_workers(MODEL) == 0
    await actors.queue.quarantine("w9", b"", keep_ms=0)
    assert await registry.workers(MODEL) == []


async def test_who_does_not_speak_again_is_forgotten(actors: Actors) -> None:
    await actors.queue.quarantine("gone", SAID, keep_ms=-1)
    assert await Registry(actors.scripts).workers(MODEL) == []
    await actors.queue.quarantine("w9", SAID, keep_ms=60_000)
    assert list(await actors.scripts.client.hgetall(keys.quarantine(MODEL))) == [b"w9"]
