"""Defences of `admit`: promises and claims, each with a test of theirs that fails when it is taken out."""

from __future__ import annotations

from shared.redis_client import Scripts
from tests.integration import test_claims as claims
from tests.integration import test_promises as promises
from tests.integration.mutations import Defence, each_of, fails_without

DEFENCES = [
    Defence(
        promises.test_who_comes_too_early_is_told_the_rest,
        "admit",
        "if promised and promised.due > now then return promised.due - now end",
    ),
    Defence(
        promises.test_a_repeat_after_a_lost_reply_is_told_the_rest_of_the_same_promise,
        "admit",
        "if own then return {id = id, due = tonumber(own)} end",
    ),
    Defence(
        promises.test_clients_that_ask_the_very_same_are_promised_each_their_own_time,
        "admit",
        "tonumber(first[2]) > now and redis.call('EXISTS', key('let_in', mark)) == 1",
        "false",
    ),
    Defence(
        promises.test_who_asks_the_same_and_finds_room_by_chance_takes_nobodys_promise,
        "admit",
        "tonumber(first[2]) > now and redis.call('EXISTS', key('let_in', mark)) == 1",
        "false",
    ),
    Defence(
        promises.test_when_nobody_was_let_in_for_long_who_asks_the_same_is_the_same,
        "admit",
        "and redis.call('EXISTS', key('let_in', mark)) == 1",
    ),
    Defence(promises.test_when_nobody_was_let_in_for_long_who_asks_the_same_is_the_same, "admit", ", 'PX', LET_IN_MS"),
    Defence(
        promises.test_who_came_when_told_and_found_no_room_is_the_next,
        "admit",
        "enter_promise(mark, id, now + LEAST_MS)",
    ),
    Defence(promises.test_each_is_told_when_all_before_it_will_be_in, "admit", "math.max(now, last_due)", "now"),
    Defence(
        promises.test_who_is_due_finds_room_that_others_do_not,
        "admit",
        "if promised and promised.due <= now then return 0 end",
    ),
    Defence(
        promises.test_who_is_due_finds_room_that_others_do_not,
        "admit",
        "redis.call('ZCOUNT', ledger, '-inf', now + AHEAD_MS)",
        "0",
    ),
    Defence(
        promises.test_never_more_than_half_of_the_queue_is_kept, "admit", "math.floor(max_waiting / 2)", "max_waiting"
    ),
    Defence(
        promises.test_room_is_not_kept_for_who_does_not_come,
        "admit",
        "redis.call('ZREMRANGEBYSCORE', at, '-inf', now - GRACE_MS)",
    ),
    Defence(promises.test_a_kept_promise_is_over, "admit", "if promised then leave_promise(mark, promised.id) end"),
    Defence(
        promises.test_nothing_is_promised_while_no_rate_is_known_or_beyond_a_minute,
        "admit",
        "if due - now > MOST_MS then return MOST_MS end",
    ),
    Defence(promises.test_nothing_is_promised_while_no_rate_is_known_or_beyond_a_minute, "admit", "or mark == ''"),
    Defence(
        promises.test_a_gateway_without_a_measure_promises_at_the_last_rate,
        "admit",
        "if per_s <= 0 then per_s = tonumber(last[2] or '0') end",
    ),
    Defence(
        promises.test_a_last_promise_by_the_clock_of_another_server_is_not_waited_for,
        "admit",
        "if last_due > now + MOST_MS then last_due = now end",
    ),
    Defence(
        promises.test_the_ledger_is_bounded_and_has_an_end,
        "admit",
        "if redis.call('ZCARD', ledger) < MOST then",
        "if true then",
    ),
    Defence(
        promises.test_the_ledger_is_bounded_and_has_an_end, "admit", "redis.call('PEXPIRE', at, MOST_MS + GRACE_MS)"
    ),
    Defence(
        claims.test_nothing_is_admitted_under_a_claim_that_has_run_out,
        "admit",
        "tonumber(ARGV[28]) > 0 and now > tonumber(ARGV[28])",
        "false",
    ),
]


@each_of(DEFENCES)
async def test_without_its_defence_it_fails(scripts: Scripts, defence: Defence) -> None:
    await fails_without(defence, scripts)
