"""The scripts on a real server: what each promises, one schedule a test. fsck holds the books at each end."""

from __future__ import annotations

import pytest

from redis.exceptions import OutOfMemoryError

from shared import keys
from shared.request_queue import Bounds, LeaseLost
from shared.schemas import EndFrame, EventFrame
from tests.integration.queue_actors import END, MODEL, Actors, tokens


@pytest.fixture(autouse=True)
async def books_balance(actors: Actors):
    yield
    assert await actors.problems() == []


async def test_a_request_goes_from_admission_to_its_end(actors: Actors) -> None:
    assert (await actors.admit("r1")).decision == "accepted"
    await actors.register("w1")
    delivery = await actors.take_one("w1")
    assert (delivery.body, delivery.gateways) == (b"body", ("g1",))
    await actors.emit("w1", delivery, tokens(7))
    await actors.finish("w1", delivery)
    assert await actors.state("r1") == "finished"
    assert await actors.ids("r1") == [7]


async def test_admission_repeated_after_a_lost_reply_admits_once(actors: Actors) -> None:
    await actors.admit("r1")
    assert await actors.admit("r1") == (await actors.admit("r1"))
    assert (await actors.queue.counts())["waiting"] == 1


@pytest.mark.parametrize(
    ("bounds", "decision", "figures"),
    [
        (Bounds(1, 0, 0), "full", ("2", "1")),
        (Bounds(0, 7, 0), "tokens_full", ("8", "7")),
        (Bounds(0, 0, 5), "bytes_full", ("8", "5")),
        (Bounds(0, 0, 0, 1), "tenant_full", ("2", "1")),
    ],
)
async def test_a_bound_refuses_with_its_figures(actors: Actors, bounds: Bounds, decision: str, figures: tuple[str, str]) -> None:
    await actors.admit("r1", bounds=bounds)
    refused = await actors.admit("r2", bounds=bounds)
    assert (refused.decision, refused.detail) == (decision, figures)
    assert await actors.state("r2") == "gone"


async def test_take_gives_no_more_than_fits(actors: Actors) -> None:
    await actors.register("w1")
    for i in range(3):
        await actors.admit(f"r{i}", prompt_tokens=100)
    assert [d.request_id for d in await actors.take("w1", slots=8, room=250)] == ["r0", "r1"]
    assert [d.request_id for d in await actors.take("w1", slots=0, room=250)] == []
    assert await actors.state("r2") == "waiting"


async def test_an_idle_worker_takes_even_what_is_wider_than_its_slots(actors: Actors) -> None:
    await actors.register("w1")
    await actors.admit("r1", n=4, prompt_tokens=100)
    assert [d.request_id for d in await actors.take("w1", slots=2, room=10)] == ["r1"]


async def test_tenants_are_served_in_turn_and_not_in_order_of_arrival(actors: Actors) -> None:
    await actors.register("w1")
    for i in range(3):
        await actors.admit(f"a{i}", tenant="a", prompt_tokens=100)
    await actors.admit("b0", tenant="b", prompt_tokens=100)
    order = [d.request_id for d in await actors.take("w1", slots=2)]
    assert sorted(order) == ["a0", "b0"]


async def test_a_repeated_emit_appends_once(actors: Actors) -> None:
    await actors.admit("r1")
    await actors.register("w1")
    delivery = await actors.take_one("w1")
    start = actors.tail[delivery.request_id, delivery.owner]
    await actors.emit("w1", delivery, tokens(7))
    actors.tail[delivery.request_id, delivery.owner] = start
    assert (await actors.emit("w1", delivery, tokens(7))).is_published
    actors.tail[delivery.request_id, delivery.owner] = start
    assert (await actors.emit("w1", delivery, tokens(7) + tokens(8))).is_published
    assert await actors.ids("r1") == [7, 8]


async def test_a_repeated_final_emit_is_fine(actors: Actors) -> None:
    await actors.admit("r1")
    await actors.register("w1")
    delivery = await actors.take_one("w1")
    start = actors.tail[delivery.request_id, delivery.owner]
    for _ in range(2):
        actors.tail[delivery.request_id, delivery.owner] = start
        assert (await actors.finish("w1", delivery)).is_published
    assert sum(isinstance(frame, EndFrame) for frame in await actors.frames("r1")) == 1


async def test_other_bytes_at_the_same_offset_are_fenced(actors: Actors) -> None:
    await actors.admit("r1")
    await actors.register("w1")
    delivery = await actors.take_one("w1")
    start = actors.tail[delivery.request_id, delivery.owner]
    await actors.emit("w1", delivery, tokens(7))
    actors.tail[delivery.request_id, delivery.owner] = start
    assert (await actors.emit("w1", delivery, tokens(9))).fenced == ["r1"]
    assert await actors.ids("r1") == [7]


async def test_work_of_a_dead_worker_continues_after_its_tokens(actors: Actors) -> None:
    await actors.admit("r1")
    await actors.register("w1")
    first = await actors.take_one("w1")
    await actors.emit("w1", first, tokens(7))
    await actors.lose("w1")
    assert (await actors.reap()).requeued == 1
    await actors.register("w2")
    second = await actors.take_one("w2")
    assert tokens(7) in second.journal
    await actors.emit("w2", second, tokens(8))
    await actors.finish("w2", second)
    assert await actors.ids("r1") == [7, 8]


async def test_a_worker_that_lost_its_lease_can_do_nothing(actors: Actors) -> None:
    await actors.admit("r1")
    await actors.register("w1")
    delivery = await actors.take_one("w1")
    await actors.lose("w1")
    await actors.reap()
    with pytest.raises(LeaseLost):
        await actors.emit("w1", delivery, tokens(7))
    with pytest.raises(LeaseLost):
        await actors.take("w1")
    with pytest.raises(LeaseLost):
        await actors.queue.heartbeat("w1", "nonce", b"{}")


async def test_an_old_owner_is_fenced_also_where_its_worker_lives(actors: Actors) -> None:
    await actors.admit("r1")
    await actors.register("w1")
    old = await actors.take_one("w1")
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

    return Emission(delivery.request_id, delivery.owner, actors.tail[delivery.request_id, delivery.owner], frames, 1, delivery.gateways)


async def test_a_lost_tail_is_asked_for_again(actors: Actors) -> None:
    await actors.admit("r1")
    await actors.register("w1")
    delivery = await actors.take_one("w1")
    await actors.emit("w1", delivery, tokens(7))
    await actors.scripts.client.set(keys.journal(MODEL, "r1"), delivery.journal)
    emitted = await actors.emit("w1", delivery, tokens(8))
    assert emitted.lost == {"r1": len(delivery.journal)}


async def test_heartbeat_names_what_a_lost_take_reply_left_behind(actors: Actors) -> None:
    await actors.admit("r1")
    await actors.register("w1")
    delivery = await actors.take_one("w1")
    beat = await actors.queue.heartbeat("w1", "nonce", b"{}")
    assert beat.owned == {"r1": (delivery.owner, ("g1",))}
    assert await actors.queue.release("r1", delivery.owner)
    assert not await actors.queue.release("r1", delivery.owner)
    assert await actors.state("r1") == "waiting"


async def test_cancel_ends_at_once_and_tells_the_worker(actors: Actors) -> None:
    await actors.admit("r1")
    await actors.register("w1")
    await actors.take_one("w1")
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


async def test_after_a_silence_nobody_is_late_for_a_lease(actors: Actors) -> None:
    await actors.admit("r1")
    await actors.register("w1")
    await actors.take_one("w1")
    await actors.scripts.client.execute_command("ZADD", keys.lease(MODEL), 1, "w1")  # type: ignore[attr-defined]
    assert (await actors.reap()).is_grace
    assert await actors.state("r1") == "running"


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
        await actors.lose(worker)
        await actors.reap()
    assert await actors.state("poison") == "dead"
    assert [await actors.state(f"innocent{i}") for i in range(4)] == ["waiting"] * 4


async def test_unregister_gives_back_without_blame(actors: Actors) -> None:
    await actors.admit("r1")
    await actors.register("w1")
    delivery = await actors.take_one("w1")
    await actors.emit("w1", delivery, tokens(7))
    await actors.queue.unregister("w1", "nonce")
    names = [frame.name for frame in await actors.frames("r1") if isinstance(frame, EventFrame)]
    assert names == ["taken", "released"]
    assert await actors.scripts.client.hget(keys.request(MODEL, "r1"), "crashes") == b"0"


async def test_a_script_lost_by_the_server_is_loaded_again(actors: Actors) -> None:
    await actors.admit("r1")
    await actors.scripts.client.execute_command("SCRIPT", "FLUSH")  # type: ignore[attr-defined]
    assert (await actors.admit("r1")).decision == "duplicate"


async def test_admission_is_refused_whole_when_memory_is_full_and_running_work_ends(actors: Actors) -> None:
    await actors.admit("r1")
    await actors.register("w1")
    delivery = await actors.take_one("w1")
    client = actors.scripts.client
    await client.execute_command("CONFIG", "SET", "maxmemory", "1")  # type: ignore[attr-defined]
    try:
        with pytest.raises(OutOfMemoryError):
            await actors.admit("r2")
        await actors.finish("w1", delivery)
    finally:
        await client.execute_command("CONFIG", "SET", "maxmemory", "0")  # type: ignore[attr-defined]
    assert (await actors.state("r1"), await actors.state("r2")) == ("finished", "gone")


async def test_a_stream_without_entries_is_gone(actors: Actors) -> None:
    await actors.admit("r1")
    await actors.register("w1")
    await actors.finish("w1", await actors.take_one("w1"))
    assert await actors.scripts.client.xlen(keys.queue(MODEL, "default", "t")) == 0
    left = [key async for key in actors.scripts.client.scan_iter(keys.base(MODEL) + "q:*")]
    assert left == []
    assert END.endswith(b"]\n")


async def test_two_workers_share_what_waits(actors: Actors) -> None:
    await actors.register("w1")
    await actors.register("w2")
    for i in range(4):
        await actors.admit(f"r{i}")
    assert [len(await actors.take(worker)) for worker in ("w1", "w1", "w2")] == [2, 0, 2]


async def test_a_worker_takes_more_than_its_share_of_what_nobody_took(actors: Actors) -> None:
    await actors.register("w1")
    await actors.register("absent")
    for i in range(4):
        await actors.admit(f"r{i}")
    taken = await actors.take("w1")
    while len(taken) < 4:
        taken += await actors.take("w1")
    assert [d.request_id for d in taken] == [f"r{i}" for i in range(4)]
