"""Idempotency keys on a real server: one run a key and tenant, for as long as there is a result."""

from __future__ import annotations

import pytest

from shared import keys
from shared.request_queue import Admitted
from tests.integration.queue_actors import MODEL, Actors


@pytest.fixture(autouse=True)
async def books_balance(actors: Actors):
    yield
    assert await actors.problems() == []


async def admit(actors: Actors, request_id: str, *, digest: str = "body", tenant: str = "t") -> Admitted:
    return await actors.admit(request_id, idempotency_key="k", body_digest=digest, tenant=tenant)


async def run(actors: Actors, request_id: str) -> None:
    await actors.register("w1")
    delivery = await actors.take_one("w1")
    assert delivery.request_id == request_id
    await actors.finish("w1", delivery)


async def test_a_second_request_finds_the_first(actors: Actors) -> None:
    await admit(actors, "r1")
    assert await admit(actors, "r2") == Admitted("same", ("r1",))
    await run(actors, "r1")
    assert await admit(actors, "r3") == Admitted("same", ("r1",))
    assert (await actors.queue.counts())["total_admitted"] == 1


async def test_another_body_is_a_conflict_and_another_tenant_is_another_key(actors: Actors) -> None:
    await admit(actors, "r1")
    assert await admit(actors, "r2", digest="other") == Admitted("conflict", ("r1",))
    assert (await admit(actors, "r3", tenant="u")).decision == "accepted"


async def test_a_run_without_a_result_is_run_anew(actors: Actors) -> None:
    await admit(actors, "r1")
    await actors.queue.cancel("r1")
    assert (await admit(actors, "r2")).decision == "accepted"
    assert await admit(actors, "r3") == Admitted("same", ("r2",))


async def test_a_run_that_killed_its_workers_is_not_run_again(actors: Actors) -> None:
    await admit(actors, "r1")
    await actors.register("w1")
    await actors.take_one("w1")
    await actors.lose("w1")
    await actors.reap(max_crashes=0)
    assert await actors.state("r1") == "dead"
    assert await admit(actors, "r2") == Admitted("same", ("r1",))


async def test_a_key_lives_as_long_as_its_result(actors: Actors) -> None:
    key = keys.idempotency(MODEL, "t", "k")
    await admit(actors, "r1")
    assert await ttl(actors, key) == -1
    await run(actors, "r1")
    assert 0 < await ttl(actors, key) <= await ttl(actors, keys.request(MODEL, "r1")) == 60


async def ttl(actors: Actors, key: str) -> int:
    return await actors.scripts.client.execute_command("TTL", key)  # type: ignore[attr-defined]


async def test_the_last_to_leave_does_not_cancel_a_request_with_a_key(actors: Actors) -> None:
    await admit(actors, "r1")
    assert await actors.queue.detach("r1", "g1") == "left"
    assert await actors.state("r1") == "waiting"


async def test_a_dead_gateway_leaves_its_keys_to_the_grace_alone(actors: Actors) -> None:
    await admit(actors, "r1")
    await actors.forget_grace()
    assert (await actors.reap("g1")).orphans == 1
    assert (await admit(actors, "r2")).decision == "accepted"


async def test_a_witness_brings_the_key_back(actors: Actors) -> None:
    from shared.request_queue import Ticket
    from tests.integration.queue_actors import NO_BOUNDS

    ticket = Ticket("r1", "default", "t", 4, 8, 1, idempotency_key="k", body_digest="body")
    await actors.queue.admit(ticket, b"body", NO_BOUNDS, gateway="g1", witness=True)
    assert await admit(actors, "r2") == Admitted("same", ("r1",))
