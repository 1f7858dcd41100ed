"""Each defence of the limits' scripts, and a test of theirs that fails when it is taken out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from shared.redis_client import Scripts
from tests.integration import test_limits as limits
from tests.integration.faults import MutatedScripts

REFILL = "math.max(0, tonumber(stored[i] or '0') - limit * passed_ms / MINUTE_MS)"


@dataclass(frozen=True)
class Defence:
    script: str
    old: str
    new: str
    schedule: Callable[[Scripts], Awaitable[None]]


DEFENCES = [
    Defence(
        "reserve",
        "if charged[1] then",
        "if false then",
        limits.test_a_reservation_repeated_after_a_lost_reply_is_charged_once,
    ),
    Defence(
        "reserve",
        "if charged[2] then",
        "if false then",
        limits.test_a_reservation_that_comes_after_its_refund_is_not_charged,
    ),
    Defence("reserve", "if lacking then", "if false then", limits.test_many_at_once_get_no_more_than_the_limit),
    Defence("reserve", "until_enough > wait_ms", "not lacking", limits.test_the_bucket_that_lacks_longest_is_named),
    Defence("reserve", "num_held() >= max_concurrency", "false", limits.test_places_are_bounded_and_given_back),
    Defence(
        "reserve", REFILL, "tonumber(stored[i] or '0')", limits.test_an_empty_bucket_refuses_and_says_when_it_has_enough
    ),
    Defence(
        "reserve",
        "'ZREMRANGEBYSCORE', base .. 'held', '-inf', now",
        "'ZCARD', base .. 'held'",
        limits.test_a_place_nobody_renews_is_free_again_and_a_renewed_one_is_not,
    ),
    Defence("reserve", "redis.call('PEXPIRE', KEYS[1], full_ms)", "", limits.test_everything_of_a_tenant_has_an_end),
    Defence("refund", "if charged[3] then", "if false then", limits.test_what_was_not_used_goes_back_once),
    Defence("refund", "redis.call('ZREM', base .. 'held', id)", "", limits.test_places_are_bounded_and_given_back),
    Defence(
        "refund",
        "redis.call('HSET', charge_key(id), 'closed', 1)",
        "",
        limits.test_a_reservation_that_comes_after_its_refund_is_not_charged,
    ),
    Defence(
        "hold",
        "if not redis.call('HGET', charge_key(ARGV[i]), 'closed') then",
        "if true then",
        limits.test_a_closed_request_gets_no_place_back,
    ),
]


@pytest.mark.parametrize("defence", DEFENCES, ids=lambda d: f"{d.script}-{d.old[:24]}")
async def test_without_its_defence_it_fails(scripts: Scripts, defence: Defence) -> None:
    mutated = MutatedScripts(scripts.client, defence.script, defence.old, defence.new)
    with pytest.raises(AssertionError):
        await defence.schedule(mutated)
