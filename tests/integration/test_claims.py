"""One idempotency key and two models: one run, whoever dies between claiming the key and admitting the request."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from redis.exceptions import OutOfMemoryError

from gateway.dispatch import Placed
from gateway.http.options import AdmissionOptions
from loadtest.valkey import Valkey
from shared import keys
from shared.access.claims import CLAIM_MS, claim_key
from shared.errors import IdempotencyConflict, QueueFull, Unavailable
from shared.fsck import fsck
from shared.redis_client import Scripts
from shared.registry import Registry
from shared.request_queue import RequestQueue
from shared.schemas import Request, SamplingParams
from tests.integration.queue_actors import MODEL, Actors
from tests.integration.test_attendance import CARD, Gateway, gateway_of

OTHER = "next@ba9876543210"


@pytest.fixture
async def gateways(valkey: Valkey, scripts: Scripts) -> AsyncIterator[tuple[Gateway, Gateway]]:
    """Both know two models."""
    await Registry(scripts).publish_model(msgspec.structs.replace(CARD, name="next", revision=OTHER), b"{}")
    async with (
        gateway_of(valkey.url, "g1", redis_timeout_s=1.0) as here,
        gateway_of(valkey.url, "g2", redis_timeout_s=1.0) as there,
    ):
        yield here, there
    for model in (MODEL, OTHER):
        assert (await fsck(scripts, model)).problems == []


async def post(gateway: Gateway, request_id: str, model: str, body: str, *, key: str = "k", **options: Any) -> Placed:
    params = SamplingParams(max_tokens=8, seed=1)
    request = Request(request_id=request_id, model=model, prompt_ids=(1, 2), params=params, tenant="t")
    return await gateway.dispatcher.submit(request, AdmissionOptions(60_000, key_hash=key, body_digest=body, **options))


async def num_admitted(scripts: Scripts) -> int:
    queues = [RequestQueue(scripts, model, 60, 300) for model in (MODEL, OTHER)]
    return sum([int((await queue.counts()).get("waiting", 0)) for queue in queues])


async def claim_expires(scripts: Scripts) -> None:
    client: Any = scripts.client
    assert await client.pexpire(keys.buckets("t").replace("buckets", "claim:k"), 0)


async def test_a_key_posted_to_two_models_at_one_instant_is_one_run(
    gateways: tuple[Gateway, Gateway], scripts: Scripts
) -> None:
    for number in range(10):
        told = await asyncio.gather(
            *(
                post(gateway, f"{model}-{number}", model, f"names {model}", key=f"k{number}")
                for gateway, model in zip(gateways, (MODEL, OTHER), strict=True)
            ),
            return_exceptions=True,
        )
        assert Counter(map(type, told)) == {Placed: 1, IdempotencyConflict: 1}
    assert await num_admitted(scripts) == 10


async def test_a_name_that_means_two_revisions_at_one_instant_is_one_run_joined(
    gateways: tuple[Gateway, Gateway], scripts: Scripts
) -> None:
    asked = zip(gateways, ("r1", "r2"), (MODEL, OTHER), strict=True)
    told = await asyncio.gather(*(post(gateway, name, model, "the same") for gateway, name, model in asked))
    assert len({placed.request_id for placed in told}) == 1
    assert await num_admitted(scripts) == 1


async def test_a_claim_whose_gateway_died_does_not_hinder_the_same_request_again(
    gateways: tuple[Gateway, Gateway], scripts: Scripts
) -> None:
    await claim_key(scripts, "t", "k", MODEL, "b")
    assert (await post(gateways[0], "r1", MODEL, "b")).request_id == "r1"


async def test_a_claim_whose_gateway_died_keeps_other_models_out_until_it_ends(
    gateways: tuple[Gateway, Gateway], scripts: Scripts
) -> None:
    await claim_key(scripts, "t", "k", MODEL, "b")
    with pytest.raises(IdempotencyConflict):
        await post(gateways[0], "r1", OTHER, "another")
    with pytest.raises(Unavailable):
        await post(gateways[0], "r1", OTHER, "b")
    await claim_expires(scripts)
    assert (await post(gateways[0], "r1", OTHER, "another")).request_id == "r1"


async def test_nothing_is_admitted_under_a_claim_that_has_run_out(actors: Actors) -> None:
    late = await actors.admit("r1", idempotency_key="k", body_digest="b", claimed_until_ms=1)
    assert (late.decision, await actors.state("r1")) == ("unclaimed", "gone")
    assert (await actors.admit("r1", claimed_until_ms=1 << 50)).decision == "accepted"
    assert (await actors.admit("r1", claimed_until_ms=1)).decision == "duplicate"


async def test_when_the_claim_has_ended_the_run_itself_is_found(
    gateways: tuple[Gateway, Gateway], scripts: Scripts
) -> None:
    await post(gateways[0], "r1", MODEL, "b")
    await claim_expires(scripts)
    with pytest.raises(IdempotencyConflict):
        await post(gateways[1], "r2", OTHER, "another")
    assert (await post(gateways[1], "r2", OTHER, "b")).request_id == "r1"


async def test_a_claim_repeated_is_the_same_and_is_held_longer(scripts: Scripts) -> None:
    first = await claim_key(scripts, "t", "k", MODEL, "b")
    again = await claim_key(scripts, "t", "k", MODEL, "b")
    assert 0 < first.until_ms <= again.until_ms
    assert await claim_key(scripts, "u", "k", OTHER, "b"), "another tenant's key is another one"
    client: Any = scripts.client
    assert 0 < await client.pttl("hr:t:{t}:claim:k") <= CLAIM_MS
    other = await claim_key(scripts, "t", "k", OTHER, "c")
    assert (other.until_ms, other.model, other.body_digest) == (0, MODEL, "b")


async def test_with_memory_full_nothing_is_claimed(scripts: Scripts) -> None:
    client: Any = scripts.client
    await client.config_set("maxmemory", "1")
    try:
        with pytest.raises(OutOfMemoryError):
            await claim_key(scripts, "t", "k", MODEL, "b")
    finally:
        await client.config_set("maxmemory", "0")


async def test_a_key_that_several_models_may_get_is_one_run_though_one_refuses(
    gateways: tuple[Gateway, Gateway], scripts: Scripts
) -> None:
    """One has moved on to a fallback, the other still comes to the target, which has room again."""
    await scripts.client.hset(keys.ROUTES, "tiny", '{"max_waiting": 1}')
    await gateways[0].dispatcher._catalogue._try_refresh()
    for number in range(5):
        key = f"k{number}"
        full = await post(gateways[0], f"full{number}", MODEL, "b", key=f"other{number}")
        with pytest.raises(QueueFull):
            await post(gateways[0], f"a{number}", MODEL, "b", key=key, has_alternatives=True, is_tentative=True)
        await gateways[0].dispatcher.cancel(full.request_id, "t")
        told = await asyncio.gather(
            post(gateways[0], f"a{number}", OTHER, "b", key=key, has_alternatives=True, fallback="queue_full"),
            post(gateways[1], f"b{number}", MODEL, "b", key=key, has_alternatives=True),
        )
        assert len({placed.request_id for placed in told}) == 1
        await gateways[0].dispatcher.cancel(told[0].request_id, "t")
