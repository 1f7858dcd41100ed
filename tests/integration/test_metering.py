"""The dispatcher under limits on a real server, with a worker played by hand: every end is paid or refunded once."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gateway.fanout import Fanout
from gateway.http.options import AdmissionOptions
from gateway.metering import MeteredDispatcher
from gateway.models.catalogue import Catalogue
from loadtest.valkey import Valkey
from shared import keys
from shared.access.entries import Tenant
from shared.access.limits import LimitStanding, TenantLimits
from shared.config import GatewaySettings
from shared.errors import Overloaded, Unavailable
from shared.observability import GatewayMetrics
from shared.redis_client import Scripts, connect
from shared.registry import Registry
from shared.schemas import Request, SamplingParams
from shared.text.tokenizer import encode_blob
from tests.integration.queue_actors import MODEL, Actors, tokens
from tests.integration.test_protocol_doc import CARD
from tests.unit.shared.tokenizer_samples import blob_of, byte_level

# A request fills again in ten seconds, a thousand tokens in twelve: figures do not move while a test looks.
TENANT = Tenant(name="t", requests_per_min=6, tokens_per_min=5000, max_concurrency=5)


@dataclass
class Gateway:
    dispatcher: MeteredDispatcher
    limits: TenantLimits

    async def submit(self, request_id: str = "r1", **options: Any) -> LimitStanding | None:
        params = SamplingParams(max_tokens=1000, seed=1)
        request = Request(request_id=request_id, model=MODEL, prompt_ids=(1, 2, 3, 4), params=params, tenant="t")
        standing = await self.dispatcher.reserve(TENANT, request)
        options = {"start_deadline_ms": 60_000, "tenant": TENANT} | options
        await self.dispatcher.submit(request, AdmissionOptions(**options))
        return standing

    async def standing(self) -> tuple[int, int, int]:
        """Requests and tokens used, places held; what has filled again meanwhile is rounded away."""
        standing = await self.limits.refund("nobody")
        assert standing.requests is not None and standing.tokens is not None
        return math.ceil(standing.requests.used), round(standing.tokens.used / 1000), standing.num_held

    async def until(self, wanted: tuple[int, int, int]) -> None:
        """The test's own timeout bounds the wait."""
        while True:
            if await self.standing() == wanted:
                return
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def gateway_of(url: str, **overrides: Any) -> AsyncGenerator[Gateway]:
    clocks = {"check_ms": 20, "lease_ms": 600, "heartbeat_ms": 50, "reap_ms": 200}
    settings = GatewaySettings.model_validate({"redis_url": url} | clocks | overrides)
    metrics = GatewayMetrics(CollectorRegistry())
    scripts = Scripts(connect(settings))
    fanout = Fanout(settings, scripts, "g1", metrics)
    catalogue = Catalogue(settings, scripts, metrics)
    dispatcher = MeteredDispatcher(settings, scripts, "g1", fanout, catalogue, metrics)
    await catalogue.start()
    fanout.start()
    dispatcher.start()
    try:
        yield Gateway(dispatcher, TenantLimits(scripts, TENANT, settings.lease_ms))
    finally:
        await dispatcher.stop()
        await fanout.stop()
        await catalogue.stop()
        await scripts.client.aclose()


@pytest.fixture
async def gateway(valkey: Valkey, actors: Actors) -> AsyncIterator[Gateway]:
    await Registry(actors.scripts).publish_model(CARD, encode_blob(blob_of(byte_level())))
    async with gateway_of(valkey.url) as gateway:
        yield gateway


async def test_an_answer_pays_for_what_it_was_before_its_client_sees_the_end(gateway: Gateway, actors: Actors) -> None:
    for number in range(3):  # so that a refund shows: nothing else was used
        await gateway.submit(f"r{number}")
    assert await gateway.standing() == (3, 3, 3)
    await actors.register("w1")
    first, *_ = await actors.take("w1")
    await actors.emit("w1", first, tokens(7))
    await actors.finish("w1", first)
    async with gateway.dispatcher.follow(first.request_id) as frames:
        async for _ in frames:
            pass
        assert await gateway.standing() == (3, 2, 2)


async def test_a_request_the_queue_refuses_pays_nothing(valkey: Valkey, scripts: Scripts) -> None:
    async with gateway_of(valkey.url, max_waiting=1) as gateway:
        await gateway.submit("r1")
        with pytest.raises(Overloaded):
            await gateway.submit("r2")
        assert await gateway.standing() == (1, 1, 1)


async def test_a_request_that_is_tried_again_elsewhere_is_charged_once(valkey: Valkey, actors: Actors) -> None:
    async with gateway_of(valkey.url, max_waiting=1) as gateway:
        await gateway.submit("r1")
        with pytest.raises(Overloaded):
            await gateway.submit("r2", is_tentative=True)
        await actors.queue.cancel("r1")
        tried_again = await gateway.submit("r2")
        assert tried_again is not None and tried_again.verdict == "reserved"
        await gateway.until((2, 1, 1))  # one that was cancelled before it was taken is a request


async def test_a_client_that_leaves_pays_for_no_answer(gateway: Gateway, actors: Actors) -> None:
    await gateway.submit()
    async with gateway.dispatcher.follow("r1"):
        pass
    await gateway.until((1, 0, 0))
    assert await actors.state("r1") == "cancelled"


async def test_a_request_that_fails_pays_nothing(gateway: Gateway, actors: Actors) -> None:
    await gateway.submit()
    await actors.register("w1")
    await actors.emit("w1", await actors.take_one("w1"), b'["e","failed",null,null]\n', final="failed", num_tokens=0)
    async with gateway.dispatcher.follow("r1") as frames:
        async for _ in frames:
            pass
    await gateway.until((0, 0, 0))


async def test_the_place_of_a_long_request_is_renewed(gateway: Gateway, scripts: Scripts) -> None:
    await gateway.submit()
    held = keys.buckets("t").replace("buckets", "held")
    async with gateway.dispatcher.follow("r1"):
        await scripts.client.execute_command("ZADD", held, 1, "r1")  # type: ignore[attr-defined]
        await gateway.until((1, 1, 1))


async def test_a_detached_request_keeps_its_place_until_it_ends(gateway: Gateway, actors: Actors) -> None:
    await gateway.submit(detached=True)
    async with gateway.dispatcher.follow("r1"):
        pass
    await actors.register("w1")
    delivery = await actors.take_one("w1")
    assert await gateway.standing() == (1, 1, 1)
    await actors.finish("w1", delivery)
    await gateway.until((1, 0, 0))


async def test_a_second_post_of_a_key_joins_and_pays_nothing(gateway: Gateway, actors: Actors) -> None:
    key = {"key_hash": "k", "body_digest": "d"}
    await gateway.submit("r1", **key)
    await gateway.submit("r2", **key)
    assert await gateway.standing() == (1, 1, 1)
    async with gateway.dispatcher.follow("r1"), gateway.dispatcher.follow("r1"):
        pass


async def test_a_server_that_is_away_is_never_a_pass(valkey: Valkey, scripts: Scripts) -> None:
    async with gateway_of("redis://127.0.0.1:1/0", redis_timeout_s=0.3) as gateway:
        with pytest.raises(Unavailable, match="limits"):
            await gateway.submit()


async def test_a_tenants_share_of_the_queue_is_bounded_and_its_weight_told(
    gateway: Gateway, actors: Actors, scripts: Scripts
) -> None:
    tenant = Tenant(name="t", weight=4.0, max_waiting=1)
    await gateway.submit("r1", tenant=tenant)
    with pytest.raises(Overloaded, match="your share"):
        await gateway.submit("r2", tenant=tenant)
    assert float(await scripts.client.hget(keys.tenant(MODEL, "t"), "weight") or 0) == 4.0
    assert await actors.problems() == []


async def test_what_is_withdrawn_ends_and_pays_nothing_though_it_would_outlive_its_client(
    gateway: Gateway, actors: Actors
) -> None:
    await gateway.submit("r1", detached=True)
    await actors.register("w1")
    await actors.take_one("w1")
    await gateway.submit("r2", key_hash="k", body_digest="b")
    await asyncio.gather(gateway.dispatcher.withdraw("r1"), gateway.dispatcher.withdraw("r2"))
    assert await gateway.standing() == (0, 0, 0)
    assert [await actors.state("r1"), await actors.state("r2")] == ["cancelled", "cancelled"]
