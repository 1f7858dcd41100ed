from __future__ import annotations

import pytest

from tests.unit.worker.engine.driving import BLOCK, make_sequence
from worker.engine.scheduling.forecast import WINDOW, GrowthForecast


def make_forecast(*lengths: int) -> GrowthForecast:
    forecast = GrowthForecast(BLOCK, capacity_tokens=8000)
    for length in lengths:
        forecast.record(length)
    return forecast


@pytest.mark.parametrize(("num_made", "num_left"), [(0, 30), (10, 20), (25, 15), (39, 1), (40, 20)])
def test_what_is_left_is_the_middle_of_those_that_got_longer(num_made: int, num_left: int) -> None:
    """Longer than all: half as much again."""
    assert make_forecast(10, 20, 30, 40).tokens_left(num_made) == num_left


def test_only_the_latest_answers_count() -> None:
    assert make_forecast(*[500] * WINDOW, *[7] * WINDOW).tokens_left(0) == 7


def test_before_any_answer_a_small_part_of_the_cache_is_expected() -> None:
    assert make_forecast().tokens_left(0) == 128
    assert GrowthForecast(BLOCK, capacity_tokens=80).tokens_left(0) == 10


def test_nobody_is_expected_to_grow_beyond_what_it_may() -> None:
    sequence = make_sequence(8, max_tokens=4)
    assert make_forecast(100).growth_blocks(sequence) == 1


def test_one_that_ignores_the_end_of_sequence_is_promised_no_more_than_others() -> None:
    sequence = make_sequence(8, max_tokens=4000)
    sequence.params = type(sequence.params)(max_tokens=4000, seed=0, ignore_eos=True)
    assert make_forecast(100).growth_blocks(sequence) == 25


def test_promises_are_what_is_expected_beyond_the_tables() -> None:
    forecast, sequence = make_forecast(10), make_sequence(8)
    sequence.block_table = [1, 2]
    forecast.admit(sequence)
    assert forecast.promised_blocks == 3
    sequence.block_table.append(3)
    forecast.grow(sequence)
    assert forecast.promised_blocks == 2
    forecast.leave(sequence)
    assert forecast.promised_blocks == 0


def test_one_that_grows_beyond_what_was_expected_is_promised_more() -> None:
    forecast, sequence = make_forecast(4), make_sequence(8)
    sequence.block_table = [1, 2]
    forecast.admit(sequence)
    for block in (3, 4):
        sequence.token_ids += [1] * 4
        sequence.block_table.append(block)
        forecast.grow(sequence)
    assert forecast.promised_blocks == 1
