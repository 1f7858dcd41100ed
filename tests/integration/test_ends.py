"""How requests end on a real server: cancelled, left, expired, dead, given back; fsck holds the books at the end."""

from __future__ import annotations

from typing import Any

import pytest

from shared import keys
from shared.schemas import EndFrame, EventFrame
from tests.integration.queue_actors import END, MODEL, Actors, tokens


@pytest.fixture(autouse=True)
async def books_balance(actors: Actors):
    yield
    assert await actors.problems() == []


async def test_cancel_ends_at_once_and_tells_the_worker(actors: Actors) -> None:
    await actors.begin()
    assert await actors.queue.cancel("r1") == "cancelled"
    assert await actors.queue.cancel("r1") == "cancelled"
    beat = await actors.queue.heartbeat("w1", "nonce", b"{}")
    assert beat.commands == [b'["cancel","r1"]']
    assert beat.owned == {}


async def test_only_the_last_gateway_to_leave_cancels(actors: Actors) -> None:
    await actors.admit("r1", gateway="g1")
    assert await actors.queue.attach("r1", "g2") == "waiting"
    assert await actors.queue.detach("r1", "g1") == "left"
    assert await actors.queue.detach("r1", "g2") == "cancelled"


async def test_leaving_repeated_after_a_lost_reply_gets_the_same_answer_whatever_happened_since(actors: Actors) -> None:
    await actors.admit("r1", gateway="g1")
    await actors.queue.attach("r1", "g2")
    assert [await actors.queue.detach("r1", "g1") for _ in range(2)] == ["left", "left"]
    assert [await actors.queue.detach("r1", "g2") for _ in range(2)] == ["cancelled", "cancelled"]
    assert [await actors.queue.detach("r1", gateway) for gateway in ("g1", "g2")] == ["left", "cancelled"]


async def test_who_leaves_after_the_end_is_told_it_again_and_again(actors: Actors) -> None:
    await actors.admit("r1", gateway="g1")
    await actors.queue.attach("r1", "g2")
    await actors.queue.detach("r1", "g2")
    await actors.register("w1")
    await actors.finish("w1", await actors.take_one("w1"))
    assert [await actors.queue.detach("r1", "g1") for _ in range(2)] == ["finished", "finished"]
    assert await actors.queue.detach("r1", "g2") == "left"


async def test_what_remembers_the_last_to_leave_ends_with_the_request(actors: Actors) -> None:
    await actors.admit("r1", gateway="g1")
    await actors.queue.detach("r1", "g1")
    client: Any = actors.scripts.client
    assert 0 < await client.ttl(keys.listeners(MODEL, "r1")) <= 60
    assert await client.exists(keys.attached(MODEL, "g1")) == 0


async def test_a_detached_request_outlives_its_listeners(actors: Actors) -> None:
    await actors.admit("r1", is_detached=True)
    assert await actors.queue.detach("r1", "g1") == "left"
    assert (await actors.reap("g1")).is_grace
    await actors.forget_grace()
    assert (await actors.reap("g1")).orphans == 0
    assert await actors.state("r1") == "waiting"


async def test_requests_of_a_dead_gateway_are_cancelled(actors: Actors) -> None:
    await actors.admit("r1", gateway="g1")
    await actors.admit("r2", gateway="g1")
    await actors.queue.attach("r2", "g2")
    await actors.forget_grace()
    assert (await actors.reap("g1")).orphans == 1
    assert (await actors.state("r1"), await actors.state("r2")) == ("cancelled", "waiting")


async def test_a_deadline_passes_with_no_worker_alive(actors: Actors) -> None:
    await actors.admit("r1", start_deadline_ms=1)
    reaped = await actors.reap()
    while await actors.state("r1") == "waiting":
        reaped = await actors.reap()
    assert await actors.state("r1") == "expired"
    assert isinstance((await actors.frames("r1"))[-1], EndFrame), reaped


async def test_a_start_deadline_is_met_by_the_first_token(actors: Actors) -> None:
    await actors.admit("r1", start_deadline_ms=60_000)
    await actors.register("w1")
    delivery = await actors.take_one("w1")
    assert await actors.scripts.client.zcard(keys.deadlines(MODEL)) == 1
    await actors.emit("w1", delivery, tokens(7))
    assert await actors.scripts.client.zcard(keys.deadlines(MODEL)) == 0


async def test_a_request_that_kills_workers_is_dead_lettered_and_innocents_are_not(actors: Actors) -> None:
    await actors.admit("poison")
    for number in range(4):
        worker = f"w{number}"
        await actors.register(worker)
        await actors.admit(f"innocent{number}")
        deliveries = {d.request_id: d for d in await actors.take(worker)}
        for request_id, delivery in deliveries.items():
            if request_id != "poison":
                await actors.emit(worker, delivery, tokens(7))
        # Once under suspicion it is tried beside those that have made a token.
        await actors.take(worker)
        await actors.lose(worker)
        await actors.reap()
    assert await actors.state("poison") == "dead"
    assert [await actors.state(f"innocent{i}") for i in range(4)] == ["waiting"] * 4


async def test_unregister_gives_back_without_blame(actors: Actors) -> None:
    await actors.begin_running()
    await actors.queue.unregister("w1", "nonce")
    names = [frame.name for frame in await actors.frames("r1") if isinstance(frame, EventFrame)]
    assert names == ["taken", "released"]
    assert await actors.scripts.client.hget(keys.request(MODEL, "r1"), "crashes") == b"0"


async def test_a_stream_without_entries_is_gone(actors: Actors) -> None:
    await actors.finish("w1", await actors.begin())
    assert await actors.scripts.client.xlen(keys.queue(MODEL, "default", "t")) == 0
    left = [key async for key in actors.scripts.client.scan_iter(keys.base(MODEL) + "q:*")]
    assert left == []
    assert END.endswith(b"]\n")


async def test_deadlines_are_worked_off_in_pages(actors: Actors) -> None:
    for i in range(3):
        await actors.admit(f"r{i}", start_deadline_ms=60_000)
        await actors.scripts.client.execute_command("ZADD", keys.deadlines(MODEL), 1, f"r{i}")  # type: ignore[attr-defined]
    await actors.forget_grace()
    first = await actors.queue.reap((), max_crashes=3, page=2)
    second = await actors.queue.reap((), max_crashes=3, page=2)
    assert [(r.expired, r.has_more) for r in (first, second)] == [(2, True), (1, False)]


async def test_a_page_is_all_that_one_reap_looks_at(actors: Actors) -> None:
    """Requests and workers together: each of two dead ones with its two requests fills a page of three."""
    for worker in ("w1", "w2"):
        await actors.register(worker)
        for i in range(2):
            await actors.admit(f"{worker}-{i}")
        assert len(await actors.take(worker)) == 2
    for worker in ("w1", "w2"):
        await actors.lose(worker)
    pages = [await actors.queue.reap((), max_crashes=3, page=3) for _ in range(3)]
    assert [(page.requeued, page.has_more) for page in pages] == [(2, True), (2, True), (0, False)]


async def test_leaving_gives_back_page_by_page(actors: Actors) -> None:
    await actors.register("w1")
    for i in range(3):
        await actors.admit(f"r{i}")
    await actors.take("w1")
    replies = [await actors.scripts.run("unregister", keys.counts(MODEL), "w1", "nonce", 2) for _ in range(3)]
    assert replies == [[b"more", 2], [b"ok", 1], [b"nolease"]]
