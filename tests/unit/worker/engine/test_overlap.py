"""Steps launched while the one before runs: equal answers, and nothing is left behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.worker.engine.harness import (
    Machine,
    answer,
    check_blocks,
    collect,
    drain,
    make_request,
    run_alone,
    start,
)
from tests.unit.worker.engine.schedules import run_all
from tests.unit.worker.engine.test_random_schedules import WORLD

PROMPTS, LENGTHS = {"a": [1, 2, 3], "b": [4, 5, 6]}, (("a", 3), ("b", 5))
OVERLAPPED = replace(WORLD, overlaps=True, drafts=(0, 0, 0, 5))


def is_ahead(machine: Machine) -> bool:
    return machine.engine._next is not None


def begun(machine: Machine, *requests: Any) -> dict[str, list[Any]]:
    """Their prompts are computed; what came of that."""
    journals: dict[str, list[Any]] = {}
    for request in requests:
        start(machine.engine, request)
    collect(machine.engine.step(), journals)
    return journals


def test_random_schedules_with_steps_launched_ahead() -> None:
    counts = run_all(OVERLAPPED, range(80))
    assert counts["ahead"] > 200
    assert min(counts[what] for what in ("preempted", "requeued", "aborted", "displaced")) > 0


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", range(1000, 11_000, 100))
def test_random_schedules_with_steps_launched_ahead_ten_thousand_times(first_seed: int) -> None:
    assert run_all(OVERLAPPED, range(first_seed, first_seed + 100))["ahead"] > 200


def test_plain_decodes_are_ahead_until_all_have_their_length() -> None:
    machine = Machine(overlaps=True)
    journals = begun(
        machine, *(make_request(name, prompt=PROMPTS[name], max_tokens=length) for name, length in LENGTHS)
    )
    assert is_ahead(machine)
    while machine.engine.has_work():
        collect(machine.engine.step(), journals)
    assert not is_ahead(machine)
    for name, length in LENGTHS:
        assert answer(journals[name]) == answer(run_alone(make_request(name, prompt=PROMPTS[name], max_tokens=length)))
    assert machine.engine.load().steps == 5


def test_the_token_too_much_of_one_that_stopped_is_dropped() -> None:
    free = answer(run_alone(make_request(max_tokens=20)))
    request = make_request(max_tokens=20, stop_token_ids=(free.token_ids[4],))
    machine = Machine(overlaps=True)
    start(machine.engine, request)
    journal = drain(machine.engine)["r"]
    assert answer(journal).token_ids == free.token_ids[:5]
    assert is_ahead(machine)  # launched before it was known
    assert machine.scheduler.kv.num_used == 0
    start(machine.engine, make_request("next"))
    assert answer(drain(machine.engine)["next"]) == answer(run_alone(make_request("next")))


def test_one_that_is_aborted_while_its_step_runs_gets_nothing_of_it() -> None:
    machine = Machine(overlaps=True)
    begun(machine, make_request("gone"), make_request("stays"))
    machine.engine.abort(["gone"])
    check_blocks(machine.scheduler)
    assert {output.request_id for output in machine.engine.step()} == {"stays"}


@pytest.mark.parametrize(
    "params", [{"temperature": 0.7}, {"logprobs": 1}, {"min_tokens": 2}, {"presence_penalty": 0.5}]
)
def test_steps_that_need_more_than_argmaxes_are_never_ahead(params: dict[str, Any]) -> None:
    machine = Machine(overlaps=True)
    begun(machine, make_request("plain"), make_request("other", **params))
    assert not is_ahead(machine)


def test_nothing_is_ahead_where_one_waits_for_a_row_that_is_free_or_blocks_are_short() -> None:
    machine = Machine(overlaps=True, max_step_tokens=8)
    begun(machine, make_request("a"), make_request("b"))
    assert not is_ahead(machine)  # b's prompt is under way
    machine = Machine(overlaps=True, num_blocks=3, foresees=False, watermark_blocks=0)
    begun(
        machine,
        make_request("a", prompt=[1, 2, 3, 4], max_tokens=4),
        make_request("b", prompt=[5, 6, 7, 8], max_tokens=4),
    )
    assert not is_ahead(machine)  # two blocks are wanted, none is free


def test_without_the_setting_nothing_is_ahead() -> None:
    machine = Machine()
    begun(machine, make_request())
    assert not is_ahead(machine)
