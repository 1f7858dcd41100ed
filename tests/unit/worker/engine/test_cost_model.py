from __future__ import annotations

import random

import pytest

from tests.unit.worker.engine.driving import add, make_scheduler, step
from worker.engine.executor import Work
from worker.engine.scheduling.cost_model import MIN_STEPS, WARM_UP_STEPS, CostModel, Pace

FIXED_S, TOKEN_S, PAIR_S = 0.008, 0.002, 1e-6


def cost_s(work: Work) -> float:
    return FIXED_S + TOKEN_S * work.tokens + PAIR_S * work.pairs


def pairs(num_tokens: int, position: int) -> int:
    return num_tokens * position + num_tokens * (num_tokens + 1) // 2


def serve(model: CostModel, rng: random.Random, *, num_steps: int, slow: float = 0.0) -> None:
    """Decodes and, now and then, a prefill. `slow` of the steps take up to 20 times as long, all stray by 5%."""
    for number in range(num_steps):
        num_decodes = rng.randint(1, 16)
        chunk = rng.choice([16, 64, 256]) if number % 5 == 0 else 0
        work = Work(num_decodes + chunk, num_decodes * rng.randint(50, 500) + pairs(chunk, rng.randint(0, 1000)))
        model.observe(work, cost_s(work) * rng.gauss(1, 0.05) * (rng.uniform(2, 20) if rng.random() < slow else 1))


@pytest.mark.parametrize("slow", [0.0, 0.2])
@pytest.mark.parametrize("seed", range(5))
def test_the_fit_is_close_whatever_disturbs_single_steps(seed: int, slow: float) -> None:
    model = CostModel()
    serve(model, random.Random(seed), num_steps=400, slow=slow)
    for work in (Work(8, 8 * 300), Work(8 + 48, 8 * 300 + pairs(48, 500)), Work(256, pairs(256, 0))):
        assert model.seconds(work) == pytest.approx(cost_s(work), rel=0.2)


def test_the_first_steps_do_not_count() -> None:
    model = CostModel()
    works = [Work(8, 2400), Work(64, pairs(64, 0))] * 10
    for work in works[: WARM_UP_STEPS + MIN_STEPS - 1]:
        model.observe(work, 30.0)
    assert model.coefficients() is None
    for work in works:
        model.observe(work, cost_s(work))
    assert model.seconds(works[0]) == pytest.approx(cost_s(works[0]), rel=0.05)


def test_hours_of_equal_decodes_do_not_wash_out_what_a_prefill_costs() -> None:
    model = CostModel()
    serve(model, random.Random(1), num_steps=100)
    for _ in range(3000):
        model.observe(Work(8, 2400), cost_s(Work(8, 2400)))
    assert model.seconds(Work(256, pairs(256, 0))) == pytest.approx(cost_s(Work(256, pairs(256, 0))), rel=0.2)


def test_a_machine_that_gets_slower_is_followed() -> None:
    model = CostModel()
    serve(model, random.Random(2), num_steps=200)
    for _ in range(1000):
        for work in (Work(8, 2400), Work(72, 2400 + pairs(64, 0))):
            model.observe(work, 3 * cost_s(work))
    work = Work(72, 2400 + pairs(64, 0))
    assert model.seconds(work) == pytest.approx(3 * cost_s(work), rel=0.3)


def test_nothing_is_claimed_of_steps_of_one_size() -> None:
    model = CostModel()
    for _ in range(100):
        model.observe(Work(8, 2400), 0.02)
    assert model.seconds(Work(8, 2400)) is None


def test_coefficients_are_never_negative() -> None:
    """Steps that got cheaper with more pairs: noise, not a law to extrapolate."""
    model = CostModel()
    for number in range(40):
        tokens = 8 if number % 2 else 64
        model.observe(Work(tokens, 100 * (number + 1)), 0.01 + 0.001 * tokens - 1e-4 * number)
    known = model.coefficients()
    assert known is not None and min(known) >= 0


@pytest.mark.parametrize("position", [0, 3000])
def test_a_chunk_makes_the_step_as_long_as_the_target(position: int) -> None:
    model = CostModel()
    serve(model, random.Random(3), num_steps=400)
    decodes = Work(8, 8 * 300)
    chunk = Pace(0.15, model).chunk(decodes, position)
    assert chunk is not None
    assert cost_s(Work(8 + chunk, 2400 + pairs(chunk, position))) == pytest.approx(0.15, rel=0.2)


def test_where_decodes_alone_take_the_target_a_prefill_still_gets_on() -> None:
    model = CostModel()
    serve(model, random.Random(4), num_steps=400)
    decodes = Work(200, 200 * 300)
    chunk = Pace(0.15, model).chunk(decodes, 0)
    assert chunk is not None and chunk == pytest.approx(cost_s(decodes) / TOKEN_S, rel=0.3)
    assert Pace(1e-9, CostModel()).chunk(decodes, 0) == Pace.FIRST_CHUNK


def test_without_a_target_there_is_no_limit() -> None:
    assert Pace(0.0).chunk(Work(8, 2400), 0) is None


class FixedPace(Pace):
    def chunk(self, decodes: Work, position: int) -> int | None:
        return 5


def test_a_prefill_beside_decodes_is_cut_and_alone_has_the_whole_budget() -> None:
    scheduler = make_scheduler(max_step_tokens=16, pace=FixedPace(1.0))
    decode = add(scheduler, 2)
    step(scheduler)
    prefill = add(scheduler, 40, arrival=1)
    assert step(scheduler).chunks == {decode: 1, prefill: 5}
    scheduler.drop(decode)
    assert step(scheduler).chunks == {prefill: 16}


def test_what_was_given_is_counted_as_tokens_and_pairs() -> None:
    scheduler = make_scheduler(max_step_tokens=8)
    add(scheduler, 3)
    step(scheduler)
    add(scheduler, 12, arrival=1)
    step(scheduler)
    step(scheduler)
    assert scheduler.schedule().work() == Work(1 + 1, 6 + 13)
