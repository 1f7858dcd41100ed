"""Admission and taking on a real server, one schedule a test; fsck holds the books at the end of each."""

from __future__ import annotations

import pytest
from redis.exceptions import OutOfMemoryError

from shared.request_queue import Bounds
from tests.integration.queue_actors import Actors, tokens


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
        (Bounds(1, 0, 0), "full", ("2", "1", "0", "-1")),
        (Bounds(0, 7, 0), "tokens_full", ("8", "7")),
        (Bounds(0, 0, 5), "bytes_full", ("8", "5")),
        (Bounds(0, 0, 0, 1), "tenant_full", ("2", "1")),
        (Bounds(0, 0, 0, 0, 1), "class_full", ("2", "1")),
    ],
)
async def test_a_bound_refuses_with_its_figures(
    actors: Actors, bounds: Bounds, decision: str, figures: tuple[str, str]
) -> None:
    await actors.admit("r1", bounds=bounds)
    refused = await actors.admit("r2", bounds=bounds)
    assert (refused.decision, refused.detail) == (decision, figures)
    assert await actors.state("r2") == "gone"


async def test_a_class_is_bounded_by_itself_whoever_asks(actors: Actors) -> None:
    bounds = Bounds(10, 0, 0, 0, 2)
    for i, tenant in enumerate(("a", "b")):
        await actors.admit(f"batch{i}", bounds=bounds, service_class="batch", tenant=tenant)
    await actors.admit("other", bounds=Bounds(10, 0, 0), service_class="default")
    assert (await actors.admit("more", bounds=bounds, service_class="batch", tenant="c")).decision == "class_full"
    assert (await actors.admit("more", bounds=bounds, service_class="default")).decision == "accepted"


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


async def test_heartbeat_names_what_a_lost_take_reply_left_behind(actors: Actors) -> None:
    await actors.admit("r1")
    await actors.register("w1")
    delivery = await actors.take_one("w1")
    beat = await actors.queue.heartbeat("w1", "nonce", b"{}")
    assert beat.owned == {"r1": (delivery.owner, ("g1",))}
    assert await actors.queue.release("r1", delivery.owner)
    assert not await actors.queue.release("r1", delivery.owner)
    assert await actors.state("r1") == "waiting"


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
