"""Each defence of keys, classes and deadlines in the scripts, and a test that fails when it is taken out."""

from __future__ import annotations

from shared.redis_client import Scripts
from tests.integration import test_deadlines as deadlines
from tests.integration import test_idempotency as idempotency
from tests.integration import test_service_classes as classes
from tests.integration.mutations import Defence, each_of, fails_without

DEFENCES = [
    Defence(idempotency.test_a_second_request_finds_the_first, "admit", "return {'same', known_id}", "known = nil"),
    Defence(
        idempotency.test_another_body_is_a_conflict_and_another_tenant_is_another_key,
        "admit",
        "digest ~= ARGV[16]",
        "false",
    ),
    Defence(
        idempotency.test_another_body_is_a_conflict_and_another_tenant_is_another_key,
        "admit",
        "tenant .. ':' .. ARGV[15]",
        "'t:' .. ARGV[15]",
    ),
    Defence(
        idempotency.test_a_run_without_a_result_is_run_anew,
        "admit",
        "known_state and not RUN_ANEW[known_state]",
        "known_state",
    ),
    Defence(idempotency.test_a_run_that_killed_its_workers_is_not_run_again, "admit", "expired = true", "dead = true"),
    Defence(
        idempotency.test_a_witness_brings_the_key_back,
        "admit",
        "(mode == 'new' or not known or",
        "(mode == 'new' or known and",
    ),
    Defence(idempotency.test_a_key_lives_as_long_as_its_result, "emit", "if request.idem then", "if false then"),
    Defence(
        idempotency.test_the_last_to_leave_does_not_cancel_a_request_with_a_key,
        "detach",
        "and not request.idem",
    ),
    Defence(deadlines.test_what_cannot_be_met_is_refused_with_the_figures, "admit", "ahead > max_ahead", "false"),
    Defence(
        deadlines.test_only_what_goes_first_counts_against_a_deadline, "admit", "math.min(of_others,", "(of_others +"
    ),
    Defence(deadlines.test_what_comes_back_late_is_not_taken_again, "take", "if deadline and", "if false and"),
    Defence(
        classes.test_classes_share_by_weight_and_none_starves,
        "take",
        "return a.vtime < b.vtime",
        "return a.rank < b.rank",
    ),
    Defence(classes.test_a_class_is_charged_for_its_answers, "emit", "charge_class(class, total)"),
    Defence(
        classes.test_weights_of_classes_come_with_admissions,
        "admit",
        "redis.call('HSET', KEYS[1], 'weight:' .. class, ARGV[24])",
        "local _",
    ),
    Defence(
        classes.test_a_class_that_wakes_up_has_no_credit_and_no_debt, "admit", "then wake_class(class) end", "then end"
    ),
    Defence(
        classes.test_a_tenant_that_wakes_up_starts_where_the_others_are,
        "admit",
        "local at = waking_vtime(class, tenant)",
        "local at = 0",
    ),
    Defence(classes.test_a_retake_charges_nothing, "take", "local is_first = attempt == 1 and", "local is_first ="),
]


@each_of(DEFENCES)
async def test_without_its_defence_it_fails(scripts: Scripts, defence: Defence) -> None:
    await fails_without(defence, scripts)
