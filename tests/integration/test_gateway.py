"""Dispatcher and fanout on a real server, with a worker played by hand: what a client sees when things get lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gateway.dispatch import Dispatcher
from gateway.fanout import Fanout
from gateway.http.options import AdmissionOptions
from gateway.models.catalogue import Catalogue
from loadtest.valkey import Valkey
from shared import keys
from shared.config import GatewaySettings
from shared.errors import Overloaded, StreamContradiction, Unavailable
from shared.observability import GatewayMetrics
from shared.redis_client import Scripts, connect
from shared.schemas import EndFrame, Frame, Request, SamplingParams, TokensFrame
from tests.integration.queue_actors import MODEL, Actors, tokens


@dataclass
class Gateway:
    dispatcher: Dispatcher
    fanout: Fanout
    metrics: GatewayMetrics

    async def submit(self, request_id: str = "r1") -> None:
        params = SamplingParams(max_tokens=8, seed=1)
        request = Request(request_id=request_id, model=MODEL, prompt_ids=(1, 2, 3, 4), params=params, tenant="t")
        await self.dispatcher.submit(request, AdmissionOptions(start_deadline_ms=60_000))

    async def ids_until(self, frames: AsyncIterator[list[Frame]], count: int) -> list[int]:
        """Token ids as they arrive, until there are `count`."""
        ids: list[int] = []
        while len(ids) < count:
            ids += [i for frame in await anext(frames) if isinstance(frame, TokensFrame) for i in frame.token_ids]
        return ids

    async def all_ids(self, request_id: str = "r1") -> list[int]:
        async with self.dispatcher.follow(request_id) as frames:
            batches = [batch async for batch in frames]
        flat = [frame for batch in batches for frame in batch]
        assert isinstance(flat[-1], EndFrame)
        return [i for frame in flat if isinstance(frame, TokensFrame) for i in frame.token_ids]


@contextlib.asynccontextmanager
async def gateway_of(url: str, **overrides: Any) -> AsyncGenerator[Gateway]:
    settings = GatewaySettings(redis_url=url, check_ms=20, lease_ms=600, heartbeat_ms=100, reap_ms=200, **overrides)
    metrics = GatewayMetrics(CollectorRegistry())
    scripts = Scripts(connect(settings))
    fanout = Fanout(settings, scripts, "g1", metrics)
    dispatcher = Dispatcher(settings, scripts, "g1", fanout, Catalogue(settings, scripts, metrics), metrics)
    fanout.start()
    try:
        yield Gateway(dispatcher, fanout, metrics)
    finally:
        await dispatcher.stop()
        await fanout.stop()
        await scripts.client.aclose()


@pytest.fixture
async def gateway(valkey: Valkey, actors: Actors) -> AsyncIterator[Gateway]:
    async with gateway_of(valkey.url) as gateway:
        yield gateway


async def started(gateway: Gateway, actors: Actors):
    await gateway.submit()
    await actors.register("w1")
    return await actors.take_one("w1")


async def unheard(actors: Actors, delivery, frames: bytes) -> None:
    """Tokens that reach the journal and no gateway."""
    await actors.emit("w1", replace(delivery, gateways=()), frames)


async def test_frames_arrive_in_order_and_end(gateway: Gateway, actors: Actors) -> None:
    delivery = await started(gateway, actors)
    await actors.emit("w1", delivery, tokens(7))
    await actors.emit("w1", delivery, tokens(8))
    await actors.finish("w1", delivery)
    assert await gateway.all_ids() == [7, 8]


async def test_a_message_lost_on_the_way_is_read_from_the_journal(gateway: Gateway, actors: Actors) -> None:
    delivery = await started(gateway, actors)
    await unheard(actors, delivery, tokens(7))
    await actors.emit("w1", delivery, tokens(8))
    await actors.finish("w1", delivery)
    assert await gateway.all_ids() == [7, 8]


async def test_the_last_messages_lost_are_found_without_another(gateway: Gateway, actors: Actors) -> None:
    delivery = await started(gateway, actors)
    async with gateway.dispatcher.follow("r1") as frames:
        await actors.emit("w1", delivery, tokens(7))
        assert await gateway.ids_until(frames, 1) == [7]
        await unheard(actors, delivery, tokens(8))
        assert await gateway.ids_until(frames, 1) == [8]


async def test_a_message_twice_is_delivered_once(gateway: Gateway, actors: Actors) -> None:
    delivery = await started(gateway, actors)
    start = actors.tail["r1", delivery.owner]
    await actors.emit("w1", delivery, tokens(7))
    actors.tail["r1", delivery.owner] = start
    await actors.emit("w1", delivery, tokens(7) + tokens(8))
    await actors.finish("w1", delivery)
    assert await gateway.all_ids() == [7, 8]


async def test_a_subscription_cut_off_is_made_anew_and_nothing_is_missed(gateway: Gateway, actors: Actors) -> None:
    delivery = await started(gateway, actors)
    async with gateway.dispatcher.follow("r1") as frames:
        await actors.emit("w1", delivery, tokens(7))
        assert await gateway.ids_until(frames, 1) == [7]
        await actors.scripts.client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")  # type: ignore[attr-defined]
        for i in range(8, 12):
            await actors.emit("w1", delivery, tokens(i))
        assert await gateway.ids_until(frames, 4) == [8, 9, 10, 11]


async def test_a_second_worker_continues_the_stream(gateway: Gateway, actors: Actors) -> None:
    first = await started(gateway, actors)
    await actors.emit("w1", first, tokens(7))
    await actors.lose("w1")
    await actors.reap()
    await actors.register("w2")
    second = await actors.take_one("w2")
    await actors.emit("w2", second, tokens(8))
    await actors.finish("w2", second)
    assert await gateway.all_ids() == [7, 8]


async def test_a_request_the_server_forgot_is_brought_back(gateway: Gateway, actors: Actors) -> None:
    delivery = await started(gateway, actors)
    async with gateway.dispatcher.follow("r1") as frames:
        await actors.emit("w1", delivery, tokens(7))
        assert await gateway.ids_until(frames, 1) == [7]
        await actors.scripts.client.execute_command("FLUSHALL")  # type: ignore[attr-defined]
        await actors.register("w2")
        again = []
        while not again:
            again = await actors.take("w2")
        await actors.emit("w2", again[0], tokens(8))
        assert await gateway.ids_until(frames, 1) == [8]
    assert await actors.ids("r1") == [7, 8]


async def test_a_lost_tail_is_healed_by_its_worker(gateway: Gateway, actors: Actors) -> None:
    delivery = await started(gateway, actors)
    async with gateway.dispatcher.follow("r1") as frames:
        await actors.emit("w1", delivery, tokens(7))
        assert await gateway.ids_until(frames, 1) == [7]
        await actors.scripts.client.set(keys.journal(MODEL, "r1"), delivery.journal)
        assert (await actors.emit("w1", delivery, tokens(8))).lost == {"r1": len(delivery.journal)}
        actors.tail["r1", delivery.owner] = len(delivery.journal)
        await actors.emit("w1", delivery, tokens(7) + tokens(8))
        assert await gateway.ids_until(frames, 1) == [8]


async def test_what_cannot_be_continued_is_an_error_and_no_splice(gateway: Gateway, actors: Actors) -> None:
    delivery = await started(gateway, actors)
    async with gateway.dispatcher.follow("r1") as frames:
        await actors.emit("w1", delivery, tokens(7))
        assert await gateway.ids_until(frames, 1) == [7]
        await actors.scripts.client.set(keys.journal(MODEL, "r1"), delivery.journal)
        await actors.finish("w1", delivery)
        actors.tail["r1", delivery.owner] = len(delivery.journal)
        await actors.finish("w1", delivery)
        with pytest.raises(StreamContradiction):
            await gateway.ids_until(frames, 1)


async def test_a_client_that_leaves_frees_its_request(gateway: Gateway, actors: Actors) -> None:
    await started(gateway, actors)
    async with gateway.dispatcher.follow("r1") as frames:
        await anext(frames)
    await gateway.dispatcher.stop()
    assert await actors.state("r1") == "cancelled"
    assert (await actors.queue.heartbeat("w1", "nonce", b"{}")).commands == [b'["cancel","r1"]']
    assert await actors.problems() == []


async def test_a_full_queue_is_said_with_a_time_to_come_back(valkey: Valkey, actors: Actors) -> None:
    async with gateway_of(valkey.url, max_waiting=1) as gateway:
        await gateway.submit("r1")
        with pytest.raises(Overloaded, match="limit is 1") as refused:
            await gateway.submit("r2")
        assert 1 <= refused.value.retry_after_s <= 30
        assert await actors.state("r2") == "gone"


async def test_a_server_that_is_away_is_said_and_nothing_hangs(tmp_path) -> None:
    server = Valkey(tmp_path)
    server.kill()
    async with gateway_of(server.url, redis_timeout_s=0.2) as gateway:
        with pytest.raises(Unavailable):
            await gateway.submit()


async def test_admission_waits_out_a_short_restart(tmp_path) -> None:
    server = Valkey(tmp_path)
    try:
        async with gateway_of(server.url) as gateway:
            await gateway.submit("r1")
            server.kill()
            submitting = asyncio.create_task(gateway.submit("r2"))
            server.start()
            await submitting
    finally:
        server.kill()


async def test_a_client_that_leaves_during_admission_leaves_nothing_behind(gateway: Gateway, actors: Actors) -> None:
    await gateway.submit("warm")
    client = actors.scripts.client
    await client.execute_command("CLIENT", "PAUSE", "200", "WRITE")  # type: ignore[attr-defined]
    submitting = asyncio.create_task(gateway.submit("r1"))
    await asyncio.sleep(0.05)  # the admission is at the server, which does not answer yet
    submitting.cancel()
    while await actors.state("r1") != "cancelled":
        pass
    assert await actors.problems() == []


async def test_a_request_brought_back_late_keeps_its_deadline(gateway: Gateway, actors: Actors) -> None:
    delivery = await started(gateway, actors)
    async with gateway.dispatcher.follow("r1") as frames:
        await actors.emit("w1", delivery, tokens(7))
        assert await gateway.ids_until(frames, 1) == [7]
        await actors.scripts.client.execute_command("FLUSHALL")  # type: ignore[attr-defined]
        while await actors.state("r1") == "gone":
            pass
        # It has a token: the deadline for the first one is met, and must not end it in the middle.
        assert await actors.scripts.client.zcard(keys.deadlines(MODEL)) == 0
