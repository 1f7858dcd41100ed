"""What clients refused by a full queue are told, and the room kept for them: one ledger for all gateways of a model.

The server's clock decides: time passes here by moving all that was promised into the past.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from redis.exceptions import OutOfMemoryError

from loadtest.valkey import Valkey
from shared import keys
from shared.errors import Overloaded
from shared.redis_client import Scripts
from shared.request_queue import Admitted, Bounds, RequestQueue, Ticket
from tests.integration.queue_actors import MODEL, NO_BOUNDS, Actors
from tests.integration.test_attendance import gateway_of

PER_S = 10.0
FULL = Bounds(10, 0, 0)


@pytest.fixture(autouse=True)
async def books_balance(actors: Actors):
    yield
    assert await actors.problems() == []


async def crowd(actors: Actors, number: int = 10) -> None:
    for i in range(number):
        await actors.admit(f"waiting{i}")


NUMBERS = itertools.count()


async def ask(
    actors: Actors, mark: str, *, per_s: float = PER_S, bounds: Bounds = FULL, request_id: str = ""
) -> Admitted:
    """As a client that is known by its mark, under a new request id each time."""
    return await actors.admit(request_id or f"r{next(NUMBERS)}", bounds=bounds, mark=mark, drain_per_s=per_s)


async def told_ms(actors: Actors, mark: str, **ticket: Any) -> int:
    """How long a refused client is to wait."""
    refused = await ask(actors, mark, **ticket)
    assert refused.decision == "full"
    return int(refused.detail[3])


async def pass_time(actors: Actors, ms: int) -> None:
    client: Any = actors.scripts.client
    async for key in client.scan_iter(keys.promises(MODEL) + "*"):
        dues = await client.zrange(key, 0, -1, withscores=True)
        await client.zadd(key, {member: due - ms for member, due in dues})
    await client.hincrbyfloat(keys.counts(MODEL), "promised_until", -ms)


async def leave(actors: Actors, number: int = 1) -> None:
    """So many places are free again."""
    await actors.register("w1")
    for delivery in await actors.take("w1", slots=number):
        await actors.finish("w1", delivery)


async def num_promises(actors: Actors) -> int:
    return await actors.scripts.client.zcard(keys.promises(MODEL))


async def test_each_is_told_when_all_before_it_will_be_in(actors: Actors) -> None:
    await crowd(actors)
    told = [await told_ms(actors, f"c{i}") for i in range(40)]
    assert min(told) == 1000
    assert told[20:] == pytest.approx([i * 1000 / PER_S for i in range(21, 41)], rel=0.1)


async def test_two_gateways_promise_one_rate_and_not_each_the_whole(
    actors: Actors, scripts: Scripts, valkey: Valkey
) -> None:
    await crowd(actors)
    async with (
        gateway_of(valkey.url, "g1", max_waiting=10) as here,
        gateway_of(valkey.url, "g2", max_waiting=10) as there,
    ):
        await scripts.client.hset(keys.counts(MODEL), "promised_per_s", "10")
        told: list[float] = []
        for i in range(40):
            with pytest.raises(Overloaded) as refused:
                await (here, there)[i % 2].submit(f"r{i}", key_hash=f"k{i}", body_digest="b")
            told.append(refused.value.retry_after_s)
    assert told[20:] == pytest.approx([i / PER_S for i in range(21, 41)], rel=0.1)


async def test_who_was_refused_by_one_gateway_finds_its_place_by_another(
    actors: Actors, scripts: Scripts, valkey: Valkey
) -> None:
    await crowd(actors)
    async with (
        gateway_of(valkey.url, "g1", max_waiting=10) as here,
        gateway_of(valkey.url, "g2", max_waiting=10) as there,
    ):
        await scripts.client.hset(keys.counts(MODEL), "promised_per_s", "10")
        with pytest.raises(Overloaded):
            await here.submit("r1")
        await pass_time(actors, 1000)
        await leave(actors)
        with pytest.raises(Overloaded, match="1 places kept"):
            await here.submit("stranger", key_hash="another", body_digest="b")
        assert (await there.submit("r2")).request_id == "r2"
    assert await num_promises(actors) == 1  # the stranger's


async def test_a_repeat_after_a_lost_reply_is_told_the_rest_of_the_same_promise(actors: Actors) -> None:
    await crowd(actors)
    for i in range(20):
        await ask(actors, f"c{i}")
    await leave(actors, 6)
    assert (await ask(actors, "mine")).decision == "accepted"  # so several ask the same
    first, again = [await told_ms(actors, "mine", request_id="repeated") for _ in range(2)]
    assert first - 500 < again <= first
    assert await num_promises(actors) == 21


async def test_who_comes_too_early_is_told_the_rest(actors: Actors) -> None:
    await crowd(actors)
    told = [await told_ms(actors, f"c{i}") for i in range(30)]
    await pass_time(actors, 1500)
    assert told[29] - 2000 < await told_ms(actors, "c29") <= told[29] - 1500
    assert await num_promises(actors) == 30


async def several_ask_the_same(actors: Actors) -> None:
    """One that asked the same was let in, into the last place."""
    await crowd(actors, 9)
    assert (await ask(actors, "same")).decision == "accepted"


async def test_clients_that_ask_the_very_same_are_promised_each_their_own_time(actors: Actors) -> None:
    await several_ask_the_same(actors)
    told = [await told_ms(actors, "same") for _ in range(40)]
    assert told[20:] == pytest.approx([i * 1000 / PER_S for i in range(21, 41)], rel=0.1)
    await pass_time(actors, 1000)
    await leave(actors, 3)
    assert [(await ask(actors, "same")).decision for _ in range(4)] == ["accepted"] * 3 + ["full"]
    assert await num_promises(actors) == 37


async def test_when_nobody_was_let_in_for_long_who_asks_the_same_is_the_same(actors: Actors) -> None:
    await several_ask_the_same(actors)
    client: Any = actors.scripts.client
    assert 0 < await client.pttl(keys.base(MODEL) + "let_in:same") <= 10_000
    await client.delete(keys.base(MODEL) + "let_in:same")
    assert [await told_ms(actors, "same") for _ in range(2)] == [1000, pytest.approx(1000, abs=500)]
    assert await num_promises(actors) == 1


async def test_who_asks_the_same_and_finds_room_by_chance_takes_nobodys_promise(actors: Actors) -> None:
    await several_ask_the_same(actors)
    for _ in range(20):
        await ask(actors, "same")
    await leave(actors, 6)
    assert (await ask(actors, "same")).decision == "accepted"
    assert await num_promises(actors) == 20


async def test_who_came_when_told_and_found_no_room_is_the_next(actors: Actors) -> None:
    await crowd(actors)
    for i in range(30):
        await ask(actors, f"c{i}")
    await pass_time(actors, 2500)
    assert await told_ms(actors, "c12") == 1000
    await pass_time(actors, 1000)
    await leave(actors)
    assert (await ask(actors, "c12")).decision == "accepted"


async def test_who_is_due_finds_room_that_others_do_not(actors: Actors) -> None:
    await crowd(actors)
    await ask(actors, "due")
    await pass_time(actors, 1000)
    await leave(actors)
    refused = await ask(actors, "stranger")
    assert (refused.decision, refused.detail[:3]) == ("full", ("10", "10", "1"))
    assert (await ask(actors, "due")).decision == "accepted"


async def test_never_more_than_half_of_the_queue_is_kept(actors: Actors) -> None:
    await crowd(actors)
    for i in range(15):
        await ask(actors, f"c{i}", per_s=1000.0)
    await leave(actors, 6)
    assert (await ask(actors, "stranger")).decision == "accepted"
    assert (await ask(actors, "another")).detail[2] == "5"


async def test_a_queue_of_one_is_not_closed_by_what_is_promised(actors: Actors) -> None:
    await crowd(actors, 1)
    await ask(actors, "due", bounds=Bounds(1, 0, 0))
    await leave(actors)
    assert (await ask(actors, "stranger", bounds=Bounds(1, 0, 0))).decision == "accepted"


async def test_room_is_not_kept_for_who_does_not_come(actors: Actors) -> None:
    await crowd(actors)
    await ask(actors, "gone")
    await pass_time(actors, 3001)
    await leave(actors)
    assert (await ask(actors, "stranger")).decision == "accepted"
    assert await num_promises(actors) == 0


async def test_a_kept_promise_is_over(actors: Actors) -> None:
    await crowd(actors)
    await ask(actors, "due")
    await pass_time(actors, 1000)
    await leave(actors, 2)
    assert [(await ask(actors, mark)).decision for mark in ("due", "stranger")] == ["accepted", "accepted"]


async def test_nothing_is_promised_while_no_rate_is_known_or_beyond_a_minute(actors: Actors) -> None:
    await crowd(actors)
    assert await told_ms(actors, "c", per_s=0.0) == -1
    assert await told_ms(actors, "c", per_s=0.01) == 60_000
    assert await told_ms(actors, "", per_s=PER_S) == -1
    assert await num_promises(actors) == 0


async def test_a_gateway_without_a_measure_promises_at_the_last_rate(actors: Actors) -> None:
    await crowd(actors)
    for i in range(20):
        await ask(actors, f"c{i}")
    assert await told_ms(actors, "c", per_s=0.0) == pytest.approx(2200, abs=400)


async def test_a_last_promise_by_the_clock_of_another_server_is_not_waited_for(actors: Actors) -> None:
    await crowd(actors)
    await ask(actors, "first")
    await pass_time(actors, -600_000)
    assert await told_ms(actors, "c") == 1000


async def test_the_ledger_is_bounded_and_has_an_end(actors: Actors) -> None:
    client: Any = actors.scripts.client
    await crowd(actors)
    await ask(actors, "first")
    assert 0 < await client.pttl(keys.promises(MODEL)) <= 62_000
    seconds, _ = await client.time()
    await client.zadd(keys.promises(MODEL), {f"m{i}": seconds * 1000 + 30_000 for i in range(20_000)})
    assert await told_ms(actors, "one too many") >= 1000
    assert await num_promises(actors) == 20_001


async def test_with_memory_full_nothing_is_promised(actors: Actors) -> None:
    client: Any = actors.scripts.client
    await crowd(actors)
    await client.config_set("maxmemory", "1")
    try:
        with pytest.raises(OutOfMemoryError):
            await ask(actors, "c")
    finally:
        await client.config_set("maxmemory", "0")
    assert await num_promises(actors) == 0


async def test_a_witness_is_past_promises(actors: Actors) -> None:
    await crowd(actors)
    await ask(actors, "mine")
    ticket = Ticket("back", "default", "t", 4, 8, 1, mark="mine", drain_per_s=PER_S)
    admitted = await actors.queue.admit(ticket, b"body", FULL, gateway="g1", witness=True)
    assert (admitted.decision, await num_promises(actors)) == ("accepted", 1)


async def test_a_queue_without_a_bound_promises_nothing(actors: Actors) -> None:
    assert (await ask(actors, "c", bounds=NO_BOUNDS)).decision == "accepted"
    assert await num_promises(actors) == 0


async def test_each_model_has_its_own_ledger(actors: Actors, scripts: Scripts) -> None:
    await crowd(actors)
    for i in range(20):
        await ask(actors, f"c{i}")
    other = RequestQueue(scripts, "other@0123456789ab", retention_s=60, lease_ms=300)
    asked = [Ticket(f"o{i}", "default", "t", 4, 8, 1, mark=f"o{i}", drain_per_s=0.5) for i in range(2)]
    told = [await other.admit(ticket, b"body", Bounds(1, 0, 0), gateway="g1") for ticket in asked]
    assert 2000 < int(told[1].detail[3]) < 2200
