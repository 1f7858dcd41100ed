"""A tenant's limits in every mode: their books lie in a slot of their own, apart from the queue's."""

from __future__ import annotations

import math

from shared.access.entries import Tenant
from shared.access.limits import LimitStanding, TenantLimits
from shared.registry import Registry
from shared.text.tokenizer import encode_blob
from tests.contract.redis_modes.conftest import Mode
from tests.integration.queue_actors import tokens
from tests.integration.test_metering import gateway_of
from tests.integration.test_protocol_doc import CARD
from tests.unit.shared.tokenizer_samples import blob_of, byte_level


def limits_of(mode: Mode) -> TenantLimits:
    tenant = Tenant(name="acme", requests_per_min=2, tokens_per_min=1000, max_concurrency=2)
    return TenantLimits(mode.gateway.scripts, tenant, 30_000)


def used(standing: LimitStanding) -> tuple[int, int, int]:
    """Requests, tokens (rounded up: they fill again) and places."""
    assert standing.requests is not None and standing.tokens is not None
    return math.ceil(standing.requests.used), math.ceil(standing.tokens.used / 10) * 10, standing.num_held


async def test_what_is_reserved_is_charged_once_and_refunded_once(mode: Mode) -> None:
    limits = limits_of(mode)
    for _ in range(2):
        reserved = await limits.reserve("r1", 300)
        assert (reserved.verdict, used(reserved)) == ("reserved", (1, 300, 1))
    refunds = [await limits.refund("r1", paid_requests=1, paid_tokens=100) for _ in range(2)]
    assert [refund.verdict for refund in refunds] == ["refunded", "closed"]
    assert used(refunds[-1]) == (1, 100, 0)


async def test_what_lacks_is_said_and_nothing_charged(mode: Mode) -> None:
    limits = limits_of(mode)
    assert (await limits.reserve("r1", 990)).verdict == "reserved"
    refused = await limits.reserve("r2", 500)
    assert (refused.verdict, used(refused)) == ("tokens", (1, 990, 1)) and refused.wait_ms > 0


async def test_a_place_is_renewed_while_its_request_lives_and_not_after(mode: Mode) -> None:
    limits = limits_of(mode)
    for request_id in ("r1", "r2"):
        await limits.reserve(request_id, 1)
    await limits.refund("r2", paid_requests=1)
    assert await limits.hold(["r1", "r2"]) == 1
    assert (await limits.reserve("r1", 1)).num_held == 1


async def test_a_limited_request_pays_for_its_answer_and_no_more(mode: Mode) -> None:
    """A gateway's dispatcher: reserve in the tenant's slot, admit in the model's, and the refund at the end."""
    await Registry(mode.gateway.scripts).publish_model(CARD, encode_blob(blob_of(byte_level())))
    async with gateway_of(mode.deployment.url, lease_ms=30_000) as gateway:
        await gateway.submit("r1")
        assert await gateway.standing() == (1, 1, 1)
        await mode.worker.register("w1")
        delivery = await mode.worker.take_one("w1")
        await mode.worker.emit("w1", delivery, tokens(7))
        await mode.worker.finish("w1", delivery)
        async with gateway.dispatcher.follow("r1") as frames:
            async for _ in frames:
                pass
        await gateway.until((1, 0, 0))
    assert await mode.problems() == []
