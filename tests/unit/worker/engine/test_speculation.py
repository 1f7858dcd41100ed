"""Drafts: who gets how many, that they cost nobody anything, and that they change no answer."""

from __future__ import annotations

import random
from typing import Any

import pytest

from shared.errors import ConfigurationError
from tests.unit.worker.engine.driving import BLOCK, add, make_scheduler
from tests.unit.worker.engine.harness import Machine, answer, check_blocks, drain, make_request, start
from worker.engine.executor import Schedule, Work
from worker.engine.prefix_cache import Chain
from worker.engine.request import NOT_FINITE, Sequence
from worker.engine.scheduling.config import SchedulerConfig
from worker.engine.scheduling.cost_model import CostModel, Pace
from worker.engine.scheduling.scheduler import Scheduler
from worker.engine.scheduling.speculation import Speculation, confirmed

REPEATED = [1, 2, 3, 4, 5, 6, 7, 8] * 2  # after it come 1, 2, 3, ..


class KnownCosts(CostModel):
    def __init__(self, *coefficients: float) -> None:
        super().__init__()
        self._known = coefficients

    def coefficients(self) -> Any:
        return self._known


def speculating(
    *, costs: CostModel | None = None, max_drafts: int = 5, num_blocks: int = 40, **limits: Any
) -> Scheduler:
    speculation = Speculation(max_drafts, lambda sequence: sequence.params.temperature != 0.5)
    return make_scheduler(num_blocks, speculation=speculation, pace=Pace(0.0, costs), max_step_tokens=64, **limits)


def decodes_of(scheduler: Scheduler, count: int, tokens: list[int] = REPEATED, **fields: Any) -> list[Sequence]:
    """All but the last token of each is computed."""
    fields = {"chain": Chain(None)} | fields
    sequences = [add(scheduler, tokens[:-1], arrival=number, **fields) for number in range(count)]
    scheduler.update(scheduler.schedule(), [tokens[-1]] * count)
    return sequences


def decode_of(scheduler: Scheduler, tokens: list[int] = REPEATED, **fields: Any) -> Sequence:
    return decodes_of(scheduler, 1, tokens, **fields)[0]


def follow(scheduler: Scheduler, made: list[int]) -> Schedule:
    """A step whose results are the first of `made`."""
    schedule = scheduler.schedule()
    scheduler.update(schedule, made[: len(schedule.sampled) + schedule.num_drafted])
    return schedule


@pytest.mark.parametrize(
    ("made", "taken"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 4]),
        ([1, 2, 9, 4], [1, 2, 9]),
        ([9, 2, 3, 4], [9]),
        ([NOT_FINITE, 2, 3, 4], [NOT_FINITE]),
        ([1, NOT_FINITE, 3, 4], [1]),
    ],
)
def test_a_draft_counts_where_the_model_says_the_same_and_all_before_it_count(
    made: list[int], taken: list[int]
) -> None:
    assert confirmed([1, 2, 3], made) == taken


def test_a_step_makes_what_its_drafts_got_right_and_one_more() -> None:
    scheduler = speculating()
    sequence = decode_of(scheduler)
    schedule = follow(scheduler, [1, 2, 3, 77, 5, 6])
    assert schedule.drafts == {sequence: [1, 2, 3, 4, 5]}
    assert sequence.token_ids == [*REPEATED, 1, 2, 3, 77]
    assert (schedule.num_drafted, schedule.num_accepted) == (5, 3)
    assert sequence.num_tokens_to_compute == 1


def test_blocks_of_drafts_that_were_wrong_go_back() -> None:
    scheduler = speculating()
    sequence = decode_of(scheduler)
    used = scheduler.kv.num_used
    schedule = scheduler.schedule()
    assert scheduler.kv.num_used == used + 2  # of 16 tokens and five drafts
    scheduler.update(schedule, [77] * 6)
    check_blocks(scheduler)
    assert len(sequence.block_table) == -(-len(sequence.token_ids) // BLOCK)


def test_drafts_take_no_block_that_is_kept_for_growth() -> None:
    scheduler = speculating(num_blocks=5, watermark=1)
    decode_of(scheduler, max_tokens=4)
    assert scheduler.schedule().drafts == {}


def test_nobody_is_drafted_beyond_its_limit_nor_beyond_a_stop_token() -> None:
    scheduler = speculating()
    decode_of(scheduler, max_tokens=4)  # one is made, and the step makes one itself
    assert [len(drafts) for drafts in scheduler.schedule().drafts.values()] == [2]
    scheduler = speculating()
    decode_of(scheduler, [5, 6, 7, 8, 0, 9, 5, 6, 7])
    assert list(scheduler.schedule().drafts.values()) == [[8]]


def test_what_is_after_a_stop_token_is_dropped() -> None:
    scheduler = speculating()
    sequence = decode_of(scheduler)
    schedule = scheduler.schedule()
    sequence.stop_ids = frozenset({2})
    (taken,) = scheduler.update(schedule, [1, 2, 3, 4, 5, 6])
    assert (taken.token_ids, sequence.finish_reason) == ([1, 2], "stop")
    assert scheduler.kv.num_used == 0


def test_drafts_have_what_budget_others_leave() -> None:
    scheduler = speculating(max_num_seqs=2)
    decode_of(scheduler)
    other = add(scheduler, 61, arrival=1)
    schedule = scheduler.schedule()
    assert (schedule.chunks[other], schedule.num_drafted, schedule.budget) == (61, 2, 0)


@pytest.mark.parametrize(
    ("num_decodes", "costs", "num_drafts"),
    [(1, (10.0, 1.0, 0.0), 5), (1, (2.0, 1.0, 0.0), 4), (4, (2.0, 1.0, 0.0), 1), (1, (0.0, 1.0, 0.0), 0)],
)
def test_drafts_are_as_many_as_pay(num_decodes: int, costs: tuple[float, ...], num_drafts: int) -> None:
    """0.8 ** k of the k-th is expected, and costs a part of what a token costs."""
    scheduler = speculating(costs=KnownCosts(*costs))
    sequences = decodes_of(scheduler, num_decodes)
    drafts = scheduler.schedule().drafts
    assert [len(drafts.get(sequence, [])) for sequence in sequences] == [num_drafts] * num_decodes


def test_one_whose_drafts_are_wrong_has_none_until_much_later() -> None:
    scheduler, rng = speculating(costs=KnownCosts(1.0, 1.0, 0.0), num_blocks=400), random.Random(0)
    decode_of(scheduler, max_tokens=1000)
    numbers = [follow(scheduler, rng.choices(range(90, 94), k=6)).num_drafted for _ in range(200)]
    assert sum(numbers[:10]) > 3 and sum(numbers[-100:]) in range(1, 30)


def test_only_those_whose_tokens_are_all_the_argmax_have_drafts() -> None:
    scheduler = speculating()
    drawn, greedy = decodes_of(scheduler, 2)
    drawn.params = type(drawn.params)(max_tokens=50, seed=0, temperature=0.5)
    assert list(scheduler.schedule().drafts) == [greedy]


@pytest.mark.parametrize(
    "params",
    [{"temperature": 0.7}, {"logprobs": 1}, {"min_tokens": 2}, {"presence_penalty": 0.5}, {"logit_bias": ((3, 1.0),)}],
)
def test_requests_that_need_more_than_the_argmax_are_left_alone(params: dict[str, Any]) -> None:
    machine = Machine(max_drafts=5, echo_probability=1.0)
    start(machine.engine, make_request(prompt=REPEATED, max_tokens=30, **params))
    drain(machine.engine)
    assert sum(stats.num_draft_tokens for stats in machine.engine.recorder.recent) == 0


def test_answers_are_the_same_in_fewer_steps() -> None:
    made, steps = [], []
    for max_drafts in (0, 5):
        machine = Machine(max_drafts=max_drafts, echo_probability=0.95)
        start(machine.engine, make_request(prompt=REPEATED, max_tokens=100, stop=("abcabc",)))
        made.append(answer(drain(machine.engine)["r"]))
        steps.append(machine.engine.load().steps)
    assert made[0] == made[1]
    assert steps[1] < steps[0] / 2


def test_stats_count_drafts_apart() -> None:
    machine = Machine(max_drafts=5, echo_probability=1.0)
    start(machine.engine, make_request(prompt=[1, 2, 3, 4, 5] * 3, max_tokens=13))
    drain(machine.engine)
    steps = machine.engine.recorder.recent
    assert [(s.num_prefill_tokens, s.num_decode_tokens, s.num_draft_tokens, s.num_accepted_tokens) for s in steps] == [
        (15, 0, 0, 0), (0, 1, 5, 5), (0, 1, 5, 5),
    ]  # fmt: skip


def test_a_backend_that_verifies_nothing_refuses_the_setting() -> None:
    with pytest.raises(ConfigurationError, match="HEADRACE_SPECULATION"):
        SchedulerConfig(max_drafts=5).build(num_blocks=9, block_size=4)


def test_work_counts_drafts() -> None:
    scheduler = speculating()
    decode_of(scheduler)
    assert scheduler.schedule().work() == Work(6, 6 * 15 + 21)
