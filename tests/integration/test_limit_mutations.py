"""Each defence of the limits' scripts, and a test of theirs that fails when it is taken out."""

from __future__ import annotations

from shared.redis_client import Scripts
from tests.integration import test_limits as limits
from tests.integration.mutations import Defence, each_of, fails_without

REFILL = "math.max(0, tonumber(stored[i] or '0') - limit * passed_ms / MINUTE_MS)"

DEFENCES = [
    Defence(
        limits.test_a_reservation_repeated_after_a_lost_reply_is_charged_once,
        "reserve",
        "if charged[1] then",
        "if false then",
    ),
    Defence(
        limits.test_a_reservation_that_comes_after_its_refund_is_not_charged,
        "reserve",
        "if charged[2] then",
        "if false then",
    ),
    Defence(limits.test_many_at_once_get_no_more_than_the_limit, "reserve", "if lacking then", "if false then"),
    Defence(limits.test_the_bucket_that_lacks_longest_is_named, "reserve", "until_enough > wait_ms", "not lacking"),
    Defence(limits.test_places_are_bounded_and_given_back, "reserve", "num_held() >= max_concurrency", "false"),
    Defence(
        limits.test_an_empty_bucket_refuses_and_says_when_it_has_enough, "reserve", REFILL, "tonumber(stored[i] or '0')"
    ),
    Defence(
        limits.test_a_place_nobody_renews_is_free_again_and_a_renewed_one_is_not,
        "reserve",
        "'ZREMRANGEBYSCORE', base .. 'held', '-inf', now",
        "'ZCARD', base .. 'held'",
    ),
    Defence(limits.test_everything_of_a_tenant_has_an_end, "reserve", "redis.call('PEXPIRE', KEYS[1], full_ms)"),
    Defence(limits.test_what_was_not_used_goes_back_once, "refund", "if charged[3] then", "if false then"),
    Defence(limits.test_places_are_bounded_and_given_back, "refund", "redis.call('ZREM', base .. 'held', id)"),
    Defence(
        limits.test_a_reservation_that_comes_after_its_refund_is_not_charged,
        "refund",
        "redis.call('HSET', charge_key(id), 'closed', 1)",
    ),
    Defence(
        limits.test_a_closed_request_gets_no_place_back,
        "hold",
        "if not redis.call('HGET', charge_key(ARGV[i]), 'closed') then",
        "if true then",
    ),
]


@each_of(DEFENCES)
async def test_without_its_defence_it_fails(scripts: Scripts, defence: Defence) -> None:
    await fails_without(defence, scripts, cast=lambda mutated: mutated)
