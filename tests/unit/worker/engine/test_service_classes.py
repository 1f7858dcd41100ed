"""Classes in the scheduler: who runs first, who makes way, and that age ends every advantage."""

from __future__ import annotations

from tests.unit.worker.engine.driving import (
    BATCH,
    DEFAULT,
    FLEX,
    PRIORITY,
    add,
    make_scheduler,
    make_sequence,
    step,
    steps,
)
from worker.engine.scheduling.policies import HANDICAP_S, HANDICAP_S_PER_TOKEN, ByClass, ShortestRemaining


def test_a_higher_class_goes_first_and_age_makes_up_for_class() -> None:
    scheduler = make_scheduler(policy=ByClass())
    aged = add(scheduler, 2, arrival=0, rank=FLEX)
    young = add(scheduler, 2, arrival=1, arrival_s=HANDICAP_S[FLEX] + 1, rank=FLEX)
    late = add(scheduler, 2, arrival=2, arrival_s=HANDICAP_S[FLEX] + 2, rank=PRIORITY)
    assert scheduler.waiting == [aged, late, young]


def test_first_come_first_served_knows_no_class() -> None:
    scheduler = make_scheduler()
    first, second = add(scheduler, 2, rank=BATCH), add(scheduler, 2, arrival=1, rank=PRIORITY)
    assert scheduler.waiting == [first, second]


def test_the_shortest_goes_first_until_a_longer_one_has_waited_for_the_difference() -> None:
    scheduler = make_scheduler(policy=ShortestRemaining())
    waited_s = 100 * HANDICAP_S_PER_TOKEN
    long = add(scheduler, 2, max_tokens=110)
    short = add(scheduler, 2, arrival=1, arrival_s=waited_s - 1, max_tokens=10)
    late = add(scheduler, 2, arrival=2, arrival_s=waited_s + 1, max_tokens=10)
    assert scheduler.waiting == [short, long, late]


def test_a_higher_class_takes_a_slot_from_the_lowest() -> None:
    scheduler = make_scheduler(policy=ByClass(), max_num_seqs=2)
    flex, batch = add(scheduler, 2, rank=FLEX), add(scheduler, 2, arrival=1, rank=BATCH)
    step(scheduler)
    newcomer = add(scheduler, 3, arrival=2, rank=DEFAULT)
    schedule = step(scheduler)
    assert (schedule.preempted, schedule.num_displaced) == ([batch], 1)
    assert schedule.chunks == {flex: 1, newcomer: 3}, "what the victim had been given is undone"
    assert scheduler.waiting == [batch]


def test_a_higher_class_takes_blocks_from_as_many_as_it_needs_and_from_no_more() -> None:
    scheduler = make_scheduler(12, watermark=0, policy=ByClass(), foresees=False)
    for arrival in range(3):
        add(scheduler, 4, arrival=arrival, rank=BATCH)
    step(scheduler)
    assert scheduler.kv.pool.num_free == 9
    newcomer = add(scheduler, 40, arrival=3, rank=PRIORITY)
    schedule = step(scheduler)
    assert len(schedule.preempted) == 2 and newcomer in scheduler.running


def test_what_was_kept_for_the_growth_of_the_displaced_is_room_too() -> None:
    scheduler = make_scheduler(20, watermark=0, policy=ByClass())
    scheduler.forecast.record(40)
    stays = add(scheduler, 1, rank=PRIORITY, max_tokens=3)
    add(scheduler, 1, arrival=1, rank=BATCH)
    step(scheduler)
    newcomer = add(scheduler, 15, arrival=2, rank=PRIORITY)
    assert step(scheduler).num_displaced == 1
    assert scheduler.running == [stays, newcomer]


def test_where_all_make_way_what_alone_fits_is_let_in() -> None:
    scheduler = make_scheduler(10, policy=ByClass(), max_step_tokens=40)
    add(scheduler, 4, rank=BATCH)
    step(scheduler)
    newcomer = add(scheduler, 40, arrival=1, rank=PRIORITY)
    assert step(scheduler).chunks == {newcomer: 40}


def test_a_prefix_found_in_the_blocks_of_a_victim_is_no_room() -> None:
    scheduler = make_scheduler(8, watermark=0, policy=ByClass(), foresees=False, max_step_tokens=40)
    prefix = range(100, 112)
    add(scheduler, 9, rank=PRIORITY)
    add(scheduler, [*prefix, 1], arrival=1, rank=BATCH)
    step(scheduler)
    newcomer = add(scheduler, [*prefix, *range(200, 212)], arrival=2, rank=PRIORITY)
    assert (scheduler.kv.fit(newcomer).num_taken, scheduler.kv.pool.num_free) == (3, 1)
    assert step(scheduler).preempted == []


def test_nobody_yields_where_it_would_not_be_enough() -> None:
    scheduler = make_scheduler(12, watermark=0, policy=ByClass(), foresees=False)
    add(scheduler, 20, rank=PRIORITY)
    add(scheduler, 4, arrival=1, rank=BATCH)
    steps(scheduler, 2)
    newcomer = add(scheduler, 36, arrival=2, rank=DEFAULT)
    assert step(scheduler).preempted == []
    assert scheduler.waiting == [newcomer]


def test_equals_do_not_displace_each_other() -> None:
    scheduler = make_scheduler(policy=ByClass(), max_num_seqs=1)
    first = add(scheduler, 2)
    step(scheduler)
    add(scheduler, 2, arrival=1)
    assert list(step(scheduler).chunks) == [first]


def test_one_that_is_old_enough_is_not_displaced() -> None:
    scheduler = make_scheduler(policy=ByClass(), max_num_seqs=1)
    old = add(scheduler, 2, rank=FLEX)
    step(scheduler)
    add(scheduler, 2, arrival=1, arrival_s=HANDICAP_S[FLEX] + 1, rank=PRIORITY)
    assert list(step(scheduler).chunks) == [old]


def test_one_that_yielded_three_times_is_not_displaced() -> None:
    scheduler = make_scheduler(policy=ByClass(), max_num_seqs=1)
    spared = add(scheduler, 2, rank=BATCH)
    spared.num_preemptions = 3
    step(scheduler)
    add(scheduler, 2, arrival=1, rank=PRIORITY)
    assert list(step(scheduler).chunks) == [spared]


def test_out_of_blocks_the_lowest_class_yields_whatever_it_has_computed() -> None:
    scheduler = make_scheduler(6, watermark=0, policy=ByClass(), foresees=False)
    batch = add(scheduler, 11, rank=BATCH)
    add(scheduler, 4, arrival=1, rank=PRIORITY)
    preempted = [sequence for schedule in steps(scheduler, 6) for sequence in schedule.preempted]
    assert preempted == [batch]


def test_one_that_yielded_stands_at_the_head_of_its_class() -> None:
    scheduler = make_scheduler(policy=ByClass(), max_num_seqs=1)
    running = add(scheduler, 2, arrival=5, rank=FLEX)
    step(scheduler)
    earlier = add(scheduler, 2, arrival=1, rank=FLEX)
    higher = add(scheduler, 2, arrival=6, rank=PRIORITY)
    step(scheduler)
    assert scheduler.running == [higher]
    assert scheduler.waiting == [running, earlier]


def test_those_that_yielded_keep_their_order() -> None:
    scheduler = make_scheduler(policy=ByClass(), max_num_seqs=2)
    first, second = add(scheduler, 2, rank=BATCH), add(scheduler, 2, arrival=1, rank=BATCH)
    step(scheduler)
    for arrival in (2, 3):
        add(scheduler, 2, arrival=arrival, rank=PRIORITY)
        step(scheduler)
    assert scheduler.waiting == [first, second]


def test_a_new_prompt_of_a_higher_class_is_computed_before_one_under_way() -> None:
    scheduler = make_scheduler(policy=ByClass(), max_step_tokens=8)
    under_way = add(scheduler, 30, rank=BATCH)
    step(scheduler)
    newcomer = add(scheduler, 13, arrival=1, rank=PRIORITY)
    assert list(step(scheduler).chunks.items()) == [(newcomer, 8)]
    assert list(step(scheduler).chunks.items()) == [(newcomer, 5), (under_way, 3)]


def test_a_new_prompt_of_the_same_class_waits_for_one_under_way() -> None:
    scheduler = make_scheduler(policy=ByClass(), max_step_tokens=8)
    under_way = add(scheduler, 30)
    step(scheduler)
    add(scheduler, 6, arrival=1)
    assert list(step(scheduler).chunks) == [under_way]


def test_costs_are_asked_of_those_that_may_yield() -> None:
    cheap, dear = make_sequence(3, rank=FLEX), make_sequence(30, arrival=1, rank=BATCH)
    assert ByClass().who_yields([cheap, dear], lambda sequence: len(sequence.token_ids)) is dear
