"""A tenant's buckets and places on a real server: charged once, refunded once, filled again by the server's clock."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from shared import keys
from shared.access.entries import Tenant
from shared.access.limits import LimitStanding, TenantLimits
from shared.redis_client import Scripts


def limits_of(scripts: Scripts, *, lease_ms: int = 5000, **limits: Any) -> TenantLimits:
    return TenantLimits(scripts, Tenant(name="acme", **limits), lease_ms)


def used(standing: LimitStanding) -> tuple[int, int]:
    """Requests and tokens, rounded up: what has filled again since the call before is a fraction."""
    requests, tokens = (math.ceil(bucket.used) if bucket else 0 for bucket in (standing.requests, standing.tokens))
    return requests, tokens


async def pass_time(scripts: Scripts, limits: TenantLimits, ms: int) -> None:
    """The buckets were last looked at so much earlier."""
    key = keys.buckets(limits.tenant.name)
    at = await scripts.client.hget(key, "at")
    await scripts.client.hset(key, "at", str(int(at or 0) - ms))


async def test_a_reservation_repeated_after_a_lost_reply_is_charged_once(scripts: Scripts) -> None:
    limits = limits_of(scripts, requests_per_min=10, tokens_per_min=1000, max_concurrency=2)
    first = await limits.reserve("r1", 300)
    again = await limits.reserve("r1", 300)
    assert (first.verdict, again.verdict, again.num_held) == ("reserved", "reserved", 1)
    assert used(again) == (1, 300)


async def test_an_empty_bucket_refuses_and_says_when_it_has_enough(scripts: Scripts) -> None:
    limits = limits_of(scripts, tokens_per_min=600)
    await limits.reserve("r1", 600)
    refused = await limits.reserve("r2", 100)
    assert refused.verdict == "tokens" and 9_000 < refused.wait_ms <= 10_000
    await pass_time(scripts, limits, refused.wait_ms - 1500)
    assert (await limits.reserve("r2", 100)).verdict == "tokens"
    await pass_time(scripts, limits, 1501)
    assert (await limits.reserve("r2", 100)).verdict == "reserved"


async def test_a_refused_reservation_changes_nothing(scripts: Scripts) -> None:
    limits = limits_of(scripts, requests_per_min=5, tokens_per_min=100, max_concurrency=9)
    assert (await limits.reserve("r1", 101)).verdict == "tokens"
    after = await limits.reserve("r2", 1)
    assert (used(after), after.num_held) == ((1, 1), 1)


async def test_the_bucket_that_lacks_longest_is_named(scripts: Scripts) -> None:
    limits = limits_of(scripts, requests_per_min=2, tokens_per_min=100)
    await limits.reserve("r1", 1)
    await limits.reserve("r2", 99)
    few, many = await limits.reserve("r3", 1), await limits.reserve("r4", 100)
    assert few.verdict == "requests" and 28_000 < few.wait_ms <= 30_000
    assert many.verdict == "tokens" and 58_000 < many.wait_ms <= 60_000


async def test_what_was_not_used_goes_back_once(scripts: Scripts) -> None:
    limits = limits_of(scripts, requests_per_min=10, tokens_per_min=100_000)
    await limits.reserve("other", 5000)
    await limits.reserve("r1", 1000)
    first = await limits.refund("r1", paid_requests=1, paid_tokens=120)
    again = await limits.refund("r1", paid_requests=0, paid_tokens=0)
    assert (first.verdict, again.verdict) == ("refunded", "closed")
    assert used(first)[0] == 2 and 4900 < (first.tokens.used if first.tokens else 0) <= 5120
    assert used(again)[0] == 2


async def test_a_refund_of_all_leaves_no_trace_in_the_buckets(scripts: Scripts) -> None:
    limits = limits_of(scripts, requests_per_min=10, tokens_per_min=1000, max_concurrency=1)
    await limits.reserve("r1", 1000)
    assert used(await limits.refund("r1")) == (0, 0)
    assert (await limits.reserve("r2", 1000)).verdict == "reserved"


async def test_a_reservation_that_comes_after_its_refund_is_not_charged(scripts: Scripts) -> None:
    limits = limits_of(scripts, tokens_per_min=1000, max_concurrency=1)
    assert (await limits.refund("r1")).verdict == "unknown"
    late = await limits.reserve("r1", 500)
    assert (late.verdict, used(late), late.num_held) == ("closed", (0, 0), 0)


async def test_places_are_bounded_and_given_back(scripts: Scripts) -> None:
    limits = limits_of(scripts, max_concurrency=2)
    verdicts = [(await limits.reserve(f"r{i}", 1)).verdict for i in range(3)]
    assert verdicts == ["reserved", "reserved", "concurrency"]
    await limits.refund("r1", paid_requests=1, paid_tokens=1)
    assert (await limits.reserve("r2", 1)).verdict == "reserved"


async def test_a_place_nobody_renews_is_free_again_and_a_renewed_one_is_not(scripts: Scripts) -> None:
    limits = limits_of(scripts, lease_ms=60_000, max_concurrency=2)
    await limits.reserve("held", 1)
    await limits.reserve("lost", 1)
    held = keys.buckets(limits.tenant.name).replace("buckets", "held")
    for request_id in ("held", "lost"):  # their leases run out now
        await scripts.client.execute_command("ZADD", held, 1, request_id)  # type: ignore[attr-defined]
    assert await limits.hold(["held"]) == 1
    assert [(await limits.reserve(f"r{i}", 1)).verdict for i in range(2)] == ["reserved", "concurrency"]


async def test_a_closed_request_gets_no_place_back(scripts: Scripts) -> None:
    limits = limits_of(scripts, max_concurrency=1)
    await limits.reserve("r1", 1)
    await limits.refund("r1")
    assert await limits.hold(["r1"]) == 0
    assert (await limits.reserve("r2", 1)).verdict == "reserved"


async def test_many_at_once_get_no_more_than_the_limit(scripts: Scripts) -> None:
    limits = limits_of(scripts, requests_per_min=7, max_concurrency=100)
    standings = await asyncio.gather(*(limits.reserve(f"r{i}", 1) for i in range(40)))
    assert sum(standing.verdict == "reserved" for standing in standings) == 7


async def test_another_tenant_is_not_touched(scripts: Scripts) -> None:
    mine, other = (TenantLimits(scripts, Tenant(name=name, requests_per_min=1), 5000) for name in ("a", "b"))
    await mine.reserve("r1", 1)
    assert (await other.reserve("r2", 1)).verdict == "reserved"


async def test_everything_of_a_tenant_has_an_end(scripts: Scripts) -> None:
    limits = limits_of(scripts, requests_per_min=10, tokens_per_min=10, max_concurrency=1)
    await limits.reserve("r1", 5)
    await limits.refund("r0")
    names = [name async for name in scripts.client.scan_iter(match="hr:t:*")]
    lives = [await scripts.client.execute_command("PTTL", name) for name in names]  # type: ignore[attr-defined]
    assert len(names) == 4 and all(0 < ms <= 60_000 for ms in lives)
