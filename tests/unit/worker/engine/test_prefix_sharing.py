"""Prefixes in the scheduler and the engine: computed once, also by those that come while it is under way."""

from __future__ import annotations

import pytest

from tests.unit.worker.engine.driving import BATCH, PRIORITY, add, make_scheduler, step, steps
from tests.unit.worker.engine.harness import Machine, answer, cached_tokens, drain, make_request, run_alone, start
from worker.engine.kv_cache_manager import CacheScope
from worker.engine.scheduling import scheduler as scheduler_module
from worker.engine.scheduling.policies import ByClass

SHARED = tuple(range(10, 26))  # four blocks


def test_a_burst_with_one_prefix_computes_it_once() -> None:
    scheduler = make_scheduler(max_step_tokens=8)
    first = add(scheduler, [*SHARED, 1])
    others = [add(scheduler, [*SHARED, 2 + i], arrival=1 + i) for i in range(2)]
    schedules = steps(scheduler, 3)
    assert [schedule.chunks for schedule in schedules[:2]] == [{first: 8}, {first: 8}]
    assert schedules[2].chunks == {first: 1} | dict.fromkeys(others, 1)
    assert schedules[2].num_found == 2 * len(SHARED)


def test_one_that_waits_for_a_prefix_holds_nobody_up() -> None:
    scheduler = make_scheduler(max_step_tokens=20)
    first = add(scheduler, [*SHARED, 1])
    add(scheduler, [*SHARED, 2], arrival=1)
    other = add(scheduler, 3, arrival=2)
    assert step(scheduler).chunks == {first: 17, other: 3}


def test_waiting_for_a_prefix_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one of a high class would wait for as long as one of a low class takes."""
    monkeypatch.setattr(scheduler_module, "MAX_HOLDS", 2)
    scheduler = make_scheduler(policy=ByClass(), max_step_tokens=4)
    slow = add(scheduler, [*SHARED, 1], rank=BATCH)
    step(scheduler)
    urgent = add(scheduler, [*SHARED, 2], arrival=1, rank=PRIORITY)
    assert [schedule.chunks for schedule in steps(scheduler, 3)] == [{slow: 4}, {slow: 4}, {urgent: 4}]
    assert urgent.num_computed_tokens == len(SHARED), "it goes on from what was computed meanwhile"


def test_waiting_ends_when_the_one_that_computes_is_gone() -> None:
    scheduler = make_scheduler(max_step_tokens=8)
    first, second = add(scheduler, [*SHARED, 1]), add(scheduler, [*SHARED, 2], arrival=1)
    step(scheduler)
    scheduler.drop(first)
    assert step(scheduler).chunks == {second: 8}
    assert second.num_computed_tokens == 16, "what was computed before is found"


def test_after_a_preemption_only_what_was_given_away_is_computed_again() -> None:
    scheduler = make_scheduler(8, watermark=0, foresees=False)
    long, short = add(scheduler, 18), add(scheduler, 9, arrival=1)
    preempted = [schedule for schedule in steps(scheduler, 6) if schedule.preempted]
    assert preempted[0].preempted == [short]
    scheduler.drop(long)
    schedule = step(scheduler)
    assert (schedule.num_found, schedule.num_recomputed) == (8, 3)


def test_choices_share_their_prompt() -> None:
    machine = Machine(max_step_tokens=100)
    start(machine.engine, make_request(prompt=[*SHARED, 1, 2], n=4, max_tokens=3))
    drain(machine.engine)
    prefills = [stats.num_prefill_tokens for stats in machine.engine.recorder.recent]
    assert prefills[:2] == [18, 3 * 2]


def test_usage_tells_what_was_found_of_the_prompt_and_no_more() -> None:
    machine = Machine()
    counts: list[int] = []
    for prompt in ([*SHARED, 1], [*SHARED, 2], [*SHARED, 1]):
        start(machine.engine, make_request(prompt=prompt, max_tokens=8))
        counts.append(cached_tokens(drain(machine.engine)["r"]))
    assert counts == [0, 16, 16]


def test_choices_that_share_a_prompt_nobody_had_computed_tell_of_nothing_found() -> None:
    assert cached_tokens(run_alone(make_request(prompt=[*SHARED, 1], n=3))) == 0


def test_the_next_turn_finds_prompt_and_answer() -> None:
    machine = Machine()
    start(machine.engine, make_request(prompt=[*SHARED, 1], max_tokens=12, ignore_eos=True))
    said = answer(drain(machine.engine)["r"]).token_ids
    start(machine.engine, make_request(prompt=[*SHARED, 1, *said, 7, 7], max_tokens=2))
    assert cached_tokens(drain(machine.engine)["r"]) == (17 + 12 - 1) // 4 * 4


def test_a_request_resumed_where_it_ran_before_finds_its_own_blocks() -> None:
    machine = Machine()
    request = make_request(prompt=SHARED, max_tokens=12, ignore_eos=True)
    start(machine.engine, request)
    whole = drain(machine.engine)["r"]
    start(machine.engine, request, whole[:7])
    rest = drain(machine.engine)["r"]
    assert (answer(whole[:7] + rest), cached_tokens(rest)) == (answer(whole), 16)
    assert machine.engine.recorder.recent[-6].num_found_tokens == 20, "also of what it had generated"


@pytest.mark.parametrize(("scope", "count"), [(CacheScope.TENANT, 0), (CacheScope.SHARED, 16), (CacheScope.OFF, 0)])
def test_whose_prefixes_are_found(scope: CacheScope, count: int) -> None:
    machine = Machine(scope=scope)
    for tenant in ("a", "b"):
        start(machine.engine, make_request(prompt=[*SHARED, 1], tenant=tenant))
        counted = cached_tokens(drain(machine.engine)["r"])
    assert counted == count
