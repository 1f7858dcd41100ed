"""Processes of two versions on one queue: who cannot read something says so, and leaves it to who can."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from gateway.models.catalogue import Catalogue
from shared import keys
from shared.config import GatewaySettings
from shared.errors import Unavailable
from shared.observability import GatewayMetrics
from shared.redis_client import Scripts
from shared.registry import Registry
from shared.request_queue import Ticket
from shared.schemas import WIRE_VERSION, ModelCard
from tests.integration.queue_actors import MODEL, NO_BOUNDS, Actors
from worker.consumer import Consumer
from worker.holdings import Holdings
from worker.shares import Offer

CARD = ModelCard(
    name="tiny",
    revision=MODEL,
    architecture="llama",
    context_length=64,
    max_request_tokens=64,
    vocab_size=100,
    stop_token_ids=(2,),
    tokenizer_digest="d",
    created_s=1,
)


@dataclass
class OldShare:
    """A share of an engine; `refused` are requests that were ended with an error."""

    refused: list[str] = field(default_factory=list)

    def abort(self, _ids: list[str]) -> None: ...

    def stalled_s(self) -> float:
        return 0.0

    def refuse(self, request_id: str, _why: str) -> None:
        self.refused.append(request_id)


async def take_newer(actors: Actors, share: OldShare, is_for_others: Callable[[], Awaitable[bool]]) -> None:
    """An old worker takes a request of a wire version it does not know."""
    body = b'{"request_id":"r1","model":"m","prompt_ids":[1],"params":{"max_tokens":1,"seed":1},"version":99}'
    ticket = Ticket("r1", "default", "t", prompt_tokens=1, max_tokens=1, n=1)
    await actors.queue.admit(ticket, body, NO_BOUNDS, gateway="g1")
    await actors.register("w1")
    engine = cast(Any, share)
    holdings = Holdings(actors.queue, engine, lambda: None)
    consumer = Consumer(actors.queue, cast(Any, None), engine, holdings, ("w1", "nonce"), lambda *_: None)
    consumer.is_for_others = is_for_others
    await consumer._take_of(Offer(4, 100))


async def answer(*, is_yes: bool) -> bool:
    return is_yes


async def test_a_body_of_a_newer_version_goes_back_without_blame_to_who_can_read_it(actors: Actors) -> None:
    share = OldShare()
    await take_newer(actors, share, lambda: answer(is_yes=True))
    assert await actors.state("r1") == "waiting" and share.refused == []
    crashes = await actors.scripts.client.hget(keys.request(MODEL, "r1"), "crashes")
    await actors.register("w2")
    assert (crashes, (await actors.take_one("w2")).request_id) == (b"0", "r1")


async def test_a_body_that_no_worker_reads_fails_instead_of_going_round(actors: Actors) -> None:
    share = OldShare()
    await take_newer(actors, share, lambda: answer(is_yes=False))
    assert share.refused == ["r1"]


async def test_a_card_of_a_newer_version_is_named_and_the_others_are_served(scripts: Scripts) -> None:
    registry = Registry(scripts)
    await registry.publish_model(CARD, b"")
    newer = msgspec.structs.replace(CARD, name="next", revision="next@1", version=WIRE_VERSION + 1)
    written = msgspec.json.encode(newer).replace(b'"name":', b'"title":')
    await scripts.client.hset(keys.MODELS, "next@1", written)
    assert await registry.models() == [CARD]
    assert "wire version 2" in registry.newer["next@1"]


async def test_a_client_is_told_that_this_gateway_is_too_old_for_a_model(scripts: Scripts) -> None:
    await scripts.client.hset(keys.MODELS, "next@1", b'{"version":99}')
    catalogue = Catalogue(GatewaySettings(), scripts, GatewayMetrics(CollectorRegistry()))
    await asyncio.wait_for(catalogue._try_refresh(), 5)
    with pytest.raises(Unavailable, match="speak wire version 99, this process 1"):
        catalogue.find("next")
