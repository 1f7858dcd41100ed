from __future__ import annotations

from tests.unit.worker.engine.driving import add, make_scheduler, make_sequence, step, steps
from worker.engine.scheduling.policies import MAX_PREEMPTIONS, FirstComeFirstServed
from worker.engine.scheduling.scheduler import MAX_SKIPS


def test_long_prompt_is_computed_in_chunks_and_then_sampled() -> None:
    scheduler = make_scheduler(max_step_tokens=8)
    sequence = add(scheduler, 18)
    schedules = steps(scheduler, 4)
    assert [schedule.chunks[sequence] for schedule in schedules] == [8, 8, 2, 1]
    assert [schedule.sampled for schedule in schedules] == [[], [], [sequence], [sequence]]


def test_decodes_go_before_prefills() -> None:
    scheduler = make_scheduler(max_step_tokens=8)
    long, short = add(scheduler, 14), add(scheduler, 1, arrival=1)
    steps(scheduler, 2)
    late = add(scheduler, 20, arrival=2)
    schedule = step(scheduler)
    assert list(schedule.chunks.items()) == [(long, 1), (short, 1), (late, 6)]


def test_a_prefill_under_way_goes_before_new_ones() -> None:
    scheduler = make_scheduler(max_step_tokens=8)
    first, second = add(scheduler, 12), add(scheduler, 12, arrival=1)
    step(scheduler)
    assert list(step(scheduler).chunks.items()) == [(first, 4), (second, 4)]


def test_no_more_than_max_num_seqs_run() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    for arrival in range(3):
        add(scheduler, 2, arrival=arrival)
    assert len(step(scheduler).chunks) == 2
    assert (scheduler.free_slots(), len(scheduler.waiting)) == (0, 1)


def test_admission_keeps_the_watermark_unless_nothing_runs() -> None:
    scheduler = make_scheduler(5)
    first = add(scheduler, 9, max_tokens=3)
    second = add(scheduler, 5, arrival=1, max_tokens=3)
    assert list(step(scheduler).chunks) == [first]
    scheduler.drop(first)
    assert list(step(scheduler).chunks) == [second]
    lone = make_scheduler(4)
    whole = add(lone, 16)
    assert list(step(lone).chunks) == [whole]


def test_admission_keeps_what_the_answers_will_probably_grow_by() -> None:
    scheduler = make_scheduler(12, watermark=0, max_step_tokens=100)
    for num_tokens in (8, 12, 12):
        scheduler.forecast.record(num_tokens)
    first, second = add(scheduler, 8), add(scheduler, 8, arrival=1)
    third = add(scheduler, 8, arrival=2)
    assert list(step(scheduler).chunks) == [first, second]
    assert scheduler.kv.pool.num_free == 8, "the prompt of the third would fit, its answer would not"
    assert scheduler.waiting == [third]


def test_how_long_answers_get_is_learned_from_those_that_ended() -> None:
    scheduler = make_scheduler()
    add(scheduler, 3, max_tokens=6)
    steps(scheduler, 6)
    assert scheduler.forecast.tokens_left(0) == 6


def test_what_does_not_fit_is_passed_by_so_many_and_no_more() -> None:
    scheduler = make_scheduler(30, watermark=0, foresees=False, max_num_seqs=20)
    add(scheduler, 8)
    step(scheduler)
    big = add(scheduler, 28 * 4, arrival=1)
    small = [add(scheduler, 1, arrival=arrival, max_tokens=1) for arrival in range(2, MAX_SKIPS + 4)]
    steps(scheduler, 2)
    assert big.num_skips == MAX_SKIPS
    assert scheduler.waiting == [big, *small[MAX_SKIPS:]]


def test_sequence_with_fewest_tokens_to_recompute_yields() -> None:
    scheduler = make_scheduler(5, foresees=False)
    long, short = add(scheduler, 8), add(scheduler, 4, arrival=1)
    preempted = [sequence for schedule in steps(scheduler, 10) for sequence in schedule.preempted]
    assert preempted == [short]
    assert scheduler.running == [long]
    assert (short.num_computed_tokens, short.block_table, short.num_preemptions) == (0, [], 1)


def test_what_others_hold_as_well_costs_nothing_to_give_up() -> None:
    scheduler = make_scheduler(8, watermark=0, foresees=False)
    shared = range(100, 112)
    add(scheduler, [*shared, 1])
    step(scheduler)
    second, short = add(scheduler, [*shared, 2], arrival=1), add(scheduler, 7, arrival=2)
    step(scheduler)
    assert second.num_computed_tokens > short.num_computed_tokens
    preempted = [sequence for schedule in steps(scheduler, 4) for sequence in schedule.preempted]
    assert preempted[0] is second, "it has few tokens of its own"


def test_what_the_victim_was_given_in_this_step_is_undone() -> None:
    scheduler = make_scheduler(4, watermark=0, foresees=False)
    short, long = add(scheduler, 5), add(scheduler, 6, arrival=1)
    steps(scheduler, 2)
    assert (len(short.block_table), len(long.block_table)) == (2, 2)
    step(scheduler)  # long has 8 tokens computed, short 7
    schedule = scheduler.schedule()
    assert schedule.preempted == [short]
    assert list(schedule.chunks.items()) == [(long, 1)]
    assert schedule.budget == 15


def test_nobody_is_admitted_in_a_step_that_preempts() -> None:
    scheduler = make_scheduler(4, watermark=0, foresees=False)
    add(scheduler, 6)
    add(scheduler, 5, arrival=1)
    steps(scheduler, 3)
    add(scheduler, 1, arrival=2, max_tokens=1)
    schedule = scheduler.schedule()
    assert (len(schedule.preempted), len(schedule.chunks)) == (1, 1)


def test_one_that_yielded_three_times_yields_only_where_all_did() -> None:
    policy = FirstComeFirstServed()
    often, never = make_sequence(2), make_sequence(9, arrival=1)
    often.num_preemptions = MAX_PREEMPTIONS
    assert policy.who_yields([often, never], lambda sequence: len(sequence.token_ids)) is never
    never.num_preemptions = MAX_PREEMPTIONS
    assert policy.who_yields([often, never], lambda sequence: len(sequence.token_ids)) is often


def test_ended_sequence_leaves_its_blocks_and_row() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    sequence = add(scheduler, 5)
    step(scheduler, token_id=0)
    assert sequence.finish_reason == "stop"
    assert (scheduler.kv.num_used, scheduler.free_slots()) == (0, 1)


def test_drop_frees_at_once_and_forgets_the_waiting() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    running, waiting = add(scheduler, 5), add(scheduler, 5)
    step(scheduler)
    scheduler.drop(waiting)
    scheduler.drop(running)
    scheduler.drop(running)
    assert (scheduler.kv.num_used, len(scheduler.waiting), scheduler.free_slots()) == (0, 0, 1)


def test_free_tokens_are_those_a_new_prompt_finds_blocks_for() -> None:
    scheduler = make_scheduler(20)
    assert scheduler.free_tokens() == 80
    sequence = add(scheduler, 5, max_tokens=2)
    of_a_newcomer = scheduler.forecast.newcomer_blocks()
    assert scheduler.free_tokens() == (20 - 2 - 1 - of_a_newcomer) * 4
    step(scheduler)
    assert scheduler.free_tokens() == (20 - 2 - 1 - of_a_newcomer) * 4
    add(scheduler, 60, arrival=1)
    assert scheduler.free_tokens() == 0
    scheduler.drop(sequence)


def test_blocks_that_are_free_and_known_count_as_free() -> None:
    scheduler = make_scheduler(20)
    add(scheduler, 16)
    step(scheduler, token_id=0)
    assert len(scheduler.kv.cache) == 4
    assert scheduler.free_tokens() == 80


def test_what_free_tokens_promises_is_admitted() -> None:
    scheduler = make_scheduler(20, max_step_tokens=200)
    add(scheduler, 9)
    step(scheduler)
    newcomer = add(scheduler, scheduler.free_tokens(), arrival=1)
    assert newcomer in step(scheduler).chunks
