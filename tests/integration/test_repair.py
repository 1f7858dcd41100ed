"""A gateway's view against the journal, where something was lost on the way. What a client saw is never broken."""

from __future__ import annotations

import pytest

from shared import keys
from tests.integration.queue_actors import MODEL, NO_BOUNDS, Actors, tokens


@pytest.fixture(autouse=True)
async def books_balance(actors: Actors):
    yield
    assert await actors.problems() == []


async def running(actors: Actors):
    """r1 with token 7 in its journal, held by w1, and that journal."""
    delivery = await actors.begin_running()
    return delivery, delivery.journal + tokens(7)


async def repair(actors: Actors, prefix: bytes, owner: str = "", *, send_prefix: bool = False):
    return await actors.stream.repair("r1", "g1", prefix, owner, send_prefix=send_prefix)


async def test_a_missed_message_is_read_from_the_journal(actors: Actors) -> None:
    delivery, _ = await running(actors)
    repaired = await repair(actors, delivery.journal, delivery.owner)
    assert (repaired.verdict, repaired.tail, repaired.owner) == ("tail", tokens(7), delivery.owner)


async def test_a_journal_behind_its_live_owner_is_waited_for(actors: Actors) -> None:
    delivery, journal = await running(actors)
    assert (await repair(actors, journal + tokens(8), delivery.owner)).verdict == "wait"


async def test_what_a_client_saw_becomes_the_journal_when_its_attempt_is_gone(actors: Actors) -> None:
    delivery, journal = await running(actors)
    seen = journal + tokens(8)
    await actors.lose("w1")
    await actors.reap()
    assert (await repair(actors, seen, delivery.owner)).verdict == "mismatch"
    assert (await repair(actors, seen, delivery.owner, send_prefix=True)).verdict == "requeued"
    await actors.register("w2")
    assert (await actors.take_one("w2")).journal.startswith(seen)
    assert await actors.ids("r1") == [7, 8]


async def test_an_attempt_that_went_another_way_is_taken_back(actors: Actors) -> None:
    delivery, journal = await running(actors)
    seen = journal + tokens(8)
    await actors.queue.release("r1", delivery.owner)
    other = await actors.take_one("w1")
    await actors.emit("w1", other, tokens(9))
    assert (await repair(actors, seen, delivery.owner, send_prefix=True)).verdict == "requeued"
    assert (await actors.emit("w1", other, tokens(10))).fenced == ["r1"]
    assert await actors.ids("r1") == [7, 8]


async def test_the_longest_of_two_witnesses_wins(actors: Actors) -> None:
    _, journal = await running(actors)
    await actors.lose("w1")
    await actors.reap()
    short, long = journal + tokens(8), journal + tokens(8) + tokens(9)
    await repair(actors, short, send_prefix=True)
    assert (await repair(actors, long, send_prefix=True)).verdict == "requeued"
    assert (await repair(actors, short)).verdict == "tail"
    assert await actors.ids("r1") == [7, 8, 9]


async def test_two_clients_that_saw_different_things_are_not_spliced(actors: Actors) -> None:
    _, journal = await running(actors)
    await actors.lose("w1")
    await actors.reap()
    await repair(actors, journal + tokens(8), send_prefix=True)
    assert (await repair(actors, journal + tokens(5) + tokens(6), send_prefix=True)).verdict == "contradiction"


async def test_a_finished_journal_is_never_replaced(actors: Actors) -> None:
    delivery, journal = await running(actors)
    await actors.finish("w1", delivery)
    assert (await repair(actors, journal + tokens(8), delivery.owner)).verdict == "contradiction"
    assert (await repair(actors, tokens(1), delivery.owner, send_prefix=True)).verdict == "contradiction"


async def test_a_request_redis_lost_is_brought_back_with_what_was_seen(actors: Actors) -> None:
    delivery, journal = await running(actors)
    await actors.scripts.client.execute_command("FLUSHALL")  # type: ignore[attr-defined]
    assert (await repair(actors, journal, delivery.owner)).verdict == "gone"
    from shared.request_queue import Ticket

    ticket = Ticket("r1", "default", "t", prompt_tokens=4, max_tokens=8, n=1)
    await actors.queue.admit(ticket, b"body", NO_BOUNDS, gateway="g1", prefix=journal, witness=True)
    await actors.register("w2")
    assert (await actors.take_one("w2")).journal.startswith(journal)
    assert await actors.scripts.client.hget(keys.request(MODEL, "r1"), "tokens") == b"1"


async def test_repair_attaches_a_gateway_the_server_forgot(actors: Actors) -> None:
    delivery, journal = await running(actors)
    await actors.scripts.client.execute_command("SREM", f"{keys.base(MODEL)}g:r1", "g1")  # type: ignore[attr-defined]
    await repair(actors, journal, delivery.owner)
    beat = await actors.queue.heartbeat("w1", "nonce", b"{}")
    assert beat.owned["r1"][1] == ("g1",)
    assert beat.commands == [b'["attach","r1","g1"]']


async def test_check_tells_how_far_each_journal_is(actors: Actors) -> None:
    delivery, journal = await running(actors)
    standing, missing = await actors.stream.check(["r1", "r9"])
    assert (standing.state, standing.length, standing.owner) == ("running", len(journal), delivery.owner)
    assert missing.state == "gone"
