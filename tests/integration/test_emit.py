"""Emitting, owning and losing on a real server, one schedule a test; fsck holds the books at the end of each."""

from __future__ import annotations

import pytest

from shared import keys
from shared.request_queue import LeaseLost
from shared.schemas import EndFrame
from tests.integration.queue_actors import MODEL, Actors, tokens


@pytest.fixture(autouse=True)
async def books_balance(actors: Actors):
    yield
    assert await actors.problems() == []


async def test_a_repeated_emit_appends_once(actors: Actors) -> None:
    delivery = await actors.begin_running()
    actors.forget_sent(delivery)
    assert (await actors.emit("w1", delivery, tokens(7))).is_published
    actors.forget_sent(delivery)
    assert (await actors.emit("w1", delivery, tokens(7) + tokens(8))).is_published
    assert await actors.ids("r1") == [7, 8]


async def test_a_repeated_final_emit_is_fine(actors: Actors) -> None:
    delivery = await actors.begin()
    for _ in range(2):
        actors.forget_sent(delivery)
        assert (await actors.finish("w1", delivery)).is_published
    assert sum(isinstance(frame, EndFrame) for frame in await actors.frames("r1")) == 1


async def test_other_bytes_at_the_same_offset_are_fenced(actors: Actors) -> None:
    delivery = await actors.begin_running()
    actors.forget_sent(delivery)
    assert (await actors.emit("w1", delivery, tokens(9))).fenced == ["r1"]
    assert await actors.ids("r1") == [7]


async def test_work_of_a_dead_worker_continues_after_its_tokens(actors: Actors) -> None:
    await actors.begin_running()
    await actors.lose("w1")
    assert (await actors.reap()).requeued == 1
    await actors.register("w2")
    second = await actors.take_one("w2")
    assert tokens(7) in second.journal
    await actors.emit("w2", second, tokens(8))
    await actors.finish("w2", second)
    assert await actors.ids("r1") == [7, 8]


async def test_a_worker_that_lost_its_lease_can_do_nothing(actors: Actors) -> None:
    delivery = await actors.begin()
    await actors.lose("w1")
    await actors.reap()
    with pytest.raises(LeaseLost):
        await actors.emit("w1", delivery, tokens(7))
    with pytest.raises(LeaseLost):
        await actors.take("w1")
    with pytest.raises(LeaseLost):
        await actors.queue.heartbeat("w1", "nonce", b"{}")


async def test_an_old_owner_is_fenced_also_where_its_worker_lives(actors: Actors) -> None:
    old = await actors.begin()
    await actors.queue.release("r1", old.owner)
    new = await actors.take_one("w1")
    actors.tail[old.request_id, old.owner] = actors.tail[new.request_id, new.owner]
    assert (await actors.emit("w1", old, tokens(9))).fenced == ["r1"]
    assert (await actors.emit("w1", new, tokens(7))).is_published


async def test_one_bad_request_holds_back_the_message_and_not_the_others(actors: Actors, scripts) -> None:
    await actors.admit("good")
    await actors.admit("bad")
    await actors.register("w1")
    good, bad = await actors.take("w1")
    await actors.queue.cancel("bad")
    both = [
        actors_emission(actors, good, tokens(7)),
        actors_emission(actors, bad, tokens(7)),
    ]
    emitted = await actors.stream.emit("w1", "nonce", both)
    assert (emitted.is_published, emitted.fenced) == (False, ["bad"])
    assert await actors.ids("good") == [7]


def actors_emission(actors: Actors, delivery, frames: bytes):
    from shared.token_stream import Emission

    return Emission(
        delivery.request_id,
        delivery.owner,
        actors.tail[delivery.request_id, delivery.owner],
        frames,
        1,
        delivery.gateways,
    )


async def test_a_lost_tail_is_asked_for_again(actors: Actors) -> None:
    delivery = await actors.begin_running()
    await actors.scripts.client.set(keys.journal(MODEL, "r1"), delivery.journal)
    emitted = await actors.emit("w1", delivery, tokens(8))
    assert emitted.lost == {"r1": len(delivery.journal)}


async def test_after_a_silence_nobody_is_late_for_a_lease(actors: Actors) -> None:
    await actors.begin()
    await actors.scripts.client.execute_command("ZADD", keys.lease(MODEL), 1, "w1")  # type: ignore[attr-defined]
    assert (await actors.reap()).is_grace
    assert await actors.state("r1") == "running"


async def test_tokens_are_counted_once_where_a_repeat_brings_new_ones(actors: Actors) -> None:
    delivery = await actors.begin_running()
    actors.forget_sent(delivery)
    await actors.emit("w1", delivery, tokens(7) + tokens(8), num_tokens=2)
    assert await actors.scripts.client.hget(keys.request(MODEL, "r1"), "tokens") == b"2"


async def test_asking_for_work_does_not_keep_a_lease(actors: Actors) -> None:
    """A worker whose engine hangs still asks: it must go late all the same."""
    await actors.register("w1")
    await actors.lose("w1")
    assert await actors.take("w1") == []
    await actors.reap()
    with pytest.raises(LeaseLost):
        await actors.take("w1")


async def test_a_journal_that_lost_its_tail_is_left_as_it_was(actors: Actors) -> None:
    """Where it is not the first of its step: then its bytes are appended before its length is known."""
    await actors.admit("first")
    await actors.admit("second")
    await actors.register("w1")
    deliveries = sorted(await actors.take("w1"), key=lambda d: d.request_id)
    for delivery in deliveries:
        await actors.emit("w1", delivery, tokens(7))
    await actors.scripts.client.set(keys.journal(MODEL, "second"), deliveries[1].journal)
    step = [actors_emission(actors, delivery, tokens(8)) for delivery in deliveries]
    emitted = await actors.stream.emit("w1", "nonce", step)
    assert (emitted.is_published, emitted.lost) == (False, {"second": len(deliveries[1].journal)})
    assert await actors.stream.journal("second") == deliveries[1].journal
    assert await actors.ids("first") == [7, 8]


async def test_all_work_of_a_dead_worker_goes_on_together_and_nobody_is_blamed(actors: Actors) -> None:
    names = [f"r{i}" for i in range(64)]
    for name in names:
        await actors.admit(name)
    await actors.register("w1")
    for slots in (64, 32):
        for delivery in await actors.take("w1", slots=slots, room=10_000):
            await actors.emit("w1", delivery, tokens(7))
    await actors.lose("w1")
    while (await actors.reap()).has_more:
        pass
    await actors.register("w2")
    # At most 32 a call, and nothing but that holds the next call back.
    calls = [await actors.take("w2", slots=slots, room=10_000) for slots in (64, 32)]
    assert [len(deliveries) for deliveries in calls] == [32, 32]
    assert sorted(d.request_id for deliveries in calls for d in deliveries) == sorted(names)
    assert {await actors.scripts.client.hget(keys.request(MODEL, name), "crashes") for name in names} == {b"0"}
