from __future__ import annotations

from collections import deque

from shared.schemas import SamplingParams
from tests.unit.worker.engine.harness import LetterDecoder
from worker.engine.detokenizer import Detokenizer
from worker.engine.executor import Schedule
from worker.engine.kv_cache_manager import KVCacheManager
from worker.engine.policies import FirstComeFirstServed
from worker.engine.request import Sequence
from worker.engine.scheduler import Scheduler


def make_scheduler(
    num_blocks: int = 20, *, max_num_seqs: int = 4, max_step_tokens: int = 16, watermark: int = 1
) -> Scheduler:
    kv = KVCacheManager(num_blocks=num_blocks + 1, block_size=4, watermark_blocks=watermark)
    return Scheduler(kv, FirstComeFirstServed(), max_num_seqs=max_num_seqs, max_step_tokens=max_step_tokens)


def add(scheduler: Scheduler, num_tokens: int, *, arrival: int = 0, max_tokens: int = 50) -> Sequence:
    sequence = Sequence(
        request_id=f"r{arrival}",
        choice=0,
        arrival=arrival,
        params=SamplingParams(max_tokens=max_tokens, seed=0),
        stop_ids=frozenset({0}),
        detokenizer=Detokenizer(LetterDecoder(), ()),
        token_ids=[1] * num_tokens,
        num_prompt_tokens=num_tokens,
    )
    scheduler.add(sequence)
    return sequence


def step(scheduler: Scheduler, token_id: int = 1) -> Schedule:
    schedule = scheduler.schedule()
    scheduler.update(schedule, [token_id] * len(schedule.sampled))
    return schedule


def test_long_prompt_is_computed_in_chunks_and_then_sampled() -> None:
    scheduler = make_scheduler(max_step_tokens=8)
    sequence = add(scheduler, 18)
    steps = [step(scheduler) for _ in range(4)]
    assert [schedule.chunks[sequence] for schedule in steps] == [8, 8, 2, 1]
    assert [schedule.sampled for schedule in steps] == [[], [], [sequence], [sequence]]


def test_decodes_go_before_prefills() -> None:
    scheduler = make_scheduler(max_step_tokens=8)
    long, short = add(scheduler, 14), add(scheduler, 1)
    step(scheduler)
    step(scheduler)
    late = add(scheduler, 20)
    schedule = step(scheduler)
    assert list(schedule.chunks.items()) == [(long, 1), (short, 1), (late, 6)]


def test_a_prefill_under_way_goes_before_new_ones() -> None:
    scheduler = make_scheduler(max_step_tokens=8)
    first, second = add(scheduler, 12), add(scheduler, 12)
    step(scheduler)
    assert list(step(scheduler).chunks.items()) == [(first, 4), (second, 4)]


def test_no_more_than_max_num_seqs_run() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    for _ in range(3):
        add(scheduler, 2)
    assert len(step(scheduler).chunks) == 2
    assert (scheduler.free_slots(), len(scheduler.waiting)) == (0, 1)


def test_admission_keeps_the_watermark_unless_nothing_runs() -> None:
    scheduler = make_scheduler(4)
    first, second = add(scheduler, 9), add(scheduler, 4)
    assert list(step(scheduler).chunks) == [first]
    scheduler.drop(first)
    whole = add(make_scheduler(4), 16)
    assert list(step(scheduler).chunks) == [second]
    lone = make_scheduler(4)
    lone.add(whole)
    assert list(step(lone).chunks) == [whole]


def test_what_does_not_fit_is_not_overtaken() -> None:
    scheduler = make_scheduler(5)
    first = add(scheduler, 8)
    add(scheduler, 16)
    add(scheduler, 1)
    assert list(step(scheduler).chunks) == [first]


def test_sequence_with_fewest_tokens_to_recompute_yields() -> None:
    scheduler = make_scheduler(5)
    long, short = add(scheduler, 8), add(scheduler, 4, arrival=1)
    preempted = [sequence for _ in range(10) for sequence in step(scheduler).preempted]
    assert preempted == [short]
    assert scheduler.running == [long]
    assert (short.num_computed_tokens, short.block_table, short.num_preemptions) == (0, [], 1)


def test_what_the_victim_was_given_in_this_step_is_undone() -> None:
    scheduler = make_scheduler(4, watermark=0)
    short, long = add(scheduler, 5), add(scheduler, 6, arrival=1)
    step(scheduler)
    step(scheduler)
    assert (len(short.block_table), len(long.block_table)) == (2, 2)
    step(scheduler)  # long has 8 tokens computed, short 7
    schedule = scheduler.schedule()
    assert schedule.preempted == [short]
    assert list(schedule.chunks.items()) == [(long, 1)]
    assert schedule.budget == 15


def test_preempted_is_at_the_head_of_waiting() -> None:
    scheduler = make_scheduler(4, watermark=0)
    short = add(scheduler, 5)
    add(scheduler, 6, arrival=1)
    for _ in range(3):
        step(scheduler)
    late = add(scheduler, 4)
    step(scheduler)
    assert list(scheduler.waiting) == [short, late]


def test_nobody_is_admitted_in_a_step_that_preempts() -> None:
    class LastComeFirst(FirstComeFirstServed):
        def who_next(self, waiting: deque[Sequence]) -> Sequence:
            return waiting[-1]

    kv = KVCacheManager(num_blocks=5, block_size=4, watermark_blocks=0)
    scheduler = Scheduler(kv, LastComeFirst(), max_num_seqs=2, max_step_tokens=16)
    long, short = add(scheduler, 6, arrival=0), add(scheduler, 5, arrival=1)
    for _ in range(3):
        step(scheduler)
    add(scheduler, 1, arrival=2)
    schedule = scheduler.schedule()
    assert (schedule.preempted, list(schedule.chunks)) == ([short], [long])


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
    scheduler = make_scheduler(10)
    assert scheduler.free_tokens() == 40
    add(scheduler, 5)
    assert scheduler.free_tokens() == (10 - 2 - 1) * 4
    step(scheduler)
    assert scheduler.free_tokens() == (10 - 2 - 1) * 4
    add(scheduler, 40)
    assert scheduler.free_tokens() == 0
