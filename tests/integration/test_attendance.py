"""Joining, leaving and reading on, with two gateways on a real server and a worker played by hand."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gateway.dispatch import Dispatcher, Placed
from gateway.fanout import Fanout
from gateway.http.options import AdmissionOptions
from gateway.models.catalogue import Catalogue
from loadtest.valkey import Valkey
from shared import keys
from shared.config import GatewaySettings
from shared.durability import make_durable
from shared.errors import IdempotencyConflict, RequestNotFound
from shared.observability import GatewayMetrics
from shared.redis_client import Scripts, connect
from shared.registry import Registry
from shared.schemas import EndFrame, Frame, ModelCard, Request, SamplingParams, TokensFrame
from shared.text.tokenizer import encode_blob
from tests.integration.queue_actors import MODEL, Actors, tokens
from tests.unit.shared.tokenizer_samples import blob_of, byte_level

CARD = ModelCard(
    name="tiny", revision=MODEL, architecture="none", context_length=64, max_request_tokens=64, vocab_size=16,
    stop_token_ids=(), tokenizer_digest="d", created_s=1,
)  # fmt: skip


@dataclass
class Gateway:
    dispatcher: Dispatcher
    fanout: Fanout

    async def submit(self, request_id: str = "r1", **options: Any) -> Placed:
        params = SamplingParams(max_tokens=8, seed=1)
        request = Request(request_id=request_id, model=MODEL, prompt_ids=(1, 2, 3, 4), params=params, tenant="t")
        return await self.dispatcher.submit(request, AdmissionOptions(start_deadline_ms=60_000, **options))

    async def ids_until(self, frames: AsyncIterator[list[Frame]], count: int) -> list[int]:
        ids: list[int] = []
        while len(ids) < count:
            ids += [i for frame in await anext(frames) if isinstance(frame, TokensFrame) for i in frame.token_ids]
        return ids

    async def all_ids(self, request_id: str = "r1") -> list[int]:
        async with self.dispatcher.follow(request_id) as frames:
            flat = [frame async for batch in frames for frame in batch]
        assert isinstance(flat[-1], EndFrame)
        return [i for frame in flat if isinstance(frame, TokensFrame) for i in frame.token_ids]


@contextlib.asynccontextmanager
async def gateway_of(url: str, name: str, **settings_too: Any) -> AsyncGenerator[Gateway]:
    settings = GatewaySettings(redis_url=url, check_ms=20, lease_ms=600, heartbeat_ms=100, reap_ms=200, **settings_too)
    metrics = GatewayMetrics(CollectorRegistry())
    scripts = Scripts(connect(settings))
    fanout = Fanout(settings, scripts, name, metrics)
    catalogue = Catalogue(settings, scripts, metrics)
    dispatcher = Dispatcher(settings, scripts, name, fanout, catalogue, metrics)
    await Registry(scripts).publish_model(CARD, encode_blob(blob_of(byte_level())))
    await catalogue.start()
    fanout.start()
    try:
        yield Gateway(dispatcher, fanout)
    finally:
        await dispatcher.stop()
        await catalogue.stop()
        await fanout.stop()
        await scripts.client.aclose()


@pytest.fixture
async def here(valkey: Valkey, actors: Actors) -> AsyncIterator[Gateway]:
    async with gateway_of(valkey.url, "g1") as gateway:
        yield gateway


@pytest.fixture
async def there(valkey: Valkey, actors: Actors) -> AsyncIterator[Gateway]:
    async with gateway_of(valkey.url, "g2") as gateway:
        yield gateway


async def started(gateway: Gateway, actors: Actors, **options: Any) -> Any:
    await gateway.submit(**options)
    await actors.register("w1")
    return await actors.take_one("w1")


async def test_who_joins_on_another_gateway_gets_what_was_and_what_comes(
    here: Gateway, there: Gateway, actors: Actors
) -> None:
    delivery = await started(here, actors)
    await actors.emit("w1", delivery, tokens(7))
    assert await there.dispatcher.join("r1", "t") == Placed("r1", MODEL)
    async with there.dispatcher.follow("r1") as frames:
        assert await there.ids_until(frames, 1) == [7]
        await actors.emit("w1", delivery, tokens(8))
        assert await there.ids_until(frames, 1) == [8]
    async with here.dispatcher.follow("r1") as frames:
        await actors.emit("w1", delivery, tokens(9))
        assert await here.ids_until(frames, 3) == [7, 8, 9]


async def test_only_the_last_client_of_a_gateway_to_leave_leaves_the_request(here: Gateway, actors: Actors) -> None:
    await started(here, actors)
    async with here.dispatcher.follow("r1"):
        await here.dispatcher.join("r1", "t")
        async with here.dispatcher.follow("r1") as frames:
            await anext(frames)
        await here.dispatcher.stop()
        assert await actors.state("r1") == "running"
    await here.dispatcher.stop()
    assert await actors.state("r1") == "cancelled"
    assert await actors.problems() == []


async def test_a_request_of_another_tenant_is_not_found(here: Gateway, actors: Actors) -> None:
    await here.submit()
    for call in (here.dispatcher.join, here.dispatcher.find, here.dispatcher.cancel):
        with pytest.raises(RequestNotFound):
            await call("r1", "somebody")
    assert await here.dispatcher.cancel("r1", "t") == "cancelled"
    assert await here.dispatcher.cancel("r1", "t") == "cancelled"


async def test_a_request_with_a_key_keeps_its_witness_when_its_client_leaves(here: Gateway, actors: Actors) -> None:
    delivery = await started(here, actors, key_hash="k", body_digest="b")
    async with here.dispatcher.follow("r1") as frames:
        await actors.emit("w1", delivery, tokens(7))
        await here.ids_until(frames, 1)
    await actors.scripts.client.execute_command("FLUSHALL")  # type: ignore[attr-defined]
    await actors.register("w2")
    while not (again := await actors.take("w2")):
        pass
    await actors.emit("w2", again[0], tokens(8))
    await actors.finish("w2", again[0])
    assert await actors.ids("r1") == [7, 8]
    assert (await here.submit("r2", key_hash="k", body_digest="b")).request_id == "r1"


async def test_a_witness_lets_go_at_the_end(here: Gateway, actors: Actors) -> None:
    delivery = await started(here, actors, key_hash="k", body_digest="b")
    async with here.dispatcher.follow("r1"):
        pass
    await actors.finish("w1", delivery)
    while here.fanout.get("r1") is not None:
        await actors.scripts.client.ping()
    assert await actors.problems() == []


async def test_a_key_is_found_in_the_queue_of_another_model(here: Gateway, actors: Actors) -> None:
    await here.submit("r1", key_hash="k", body_digest="b")
    other = Request(
        request_id="r2",
        model="next@ba9876543210",
        prompt_ids=(1,),
        params=SamplingParams(max_tokens=8, seed=1),
        tenant="t",
    )
    again = await here.dispatcher.submit(other, AdmissionOptions(60_000, key_hash="k", body_digest="b"))
    assert (again.request_id, again.model) == ("r1", MODEL)
    with pytest.raises(IdempotencyConflict):
        await here.dispatcher.submit(other, AdmissionOptions(60_000, key_hash="k", body_digest="other"))


async def test_a_joined_request_that_redis_lost_and_nobody_brings_back_is_an_error(
    there: Gateway, actors: Actors
) -> None:
    await actors.admit("r1", gateway="gone")
    await there.dispatcher.join("r1", "t")
    async with there.dispatcher.follow("r1") as frames:
        await actors.scripts.client.execute_command("FLUSHALL")  # type: ignore[attr-defined]
        with pytest.raises(RequestNotFound):
            await anext(frames)


async def test_a_finished_request_is_read_from_its_journal_and_nobody_stays_attached(
    there: Gateway, actors: Actors
) -> None:
    delivery = await actors.begin_running()
    await actors.finish("w1", delivery)
    await there.dispatcher.join("r1", "t")
    assert await there.all_ids() == [7]
    assert await actors.scripts.client.smembers(keys.attached(MODEL, "g2")) == set()


async def test_a_detached_request_is_accepted_when_it_is_on_disk(here: Gateway, actors: Actors) -> None:
    assert (await here.submit(detached=True)).durability == "aof"
    async with here.dispatcher.follow("r1"):
        pass
    await here.dispatcher.stop()
    assert await actors.state("r1") == "waiting"


async def test_where_nothing_can_be_made_durable_that_is_said(tmp_path) -> None:
    server = Valkey(tmp_path)
    client = connect(GatewaySettings(redis_url=server.url))
    try:
        await client.execute_command("CONFIG", "SET", "appendonly", "no")  # type: ignore[attr-defined]
        assert await make_durable(client, MODEL, 1000) == "none"
    finally:
        await client.aclose()
        server.kill()
