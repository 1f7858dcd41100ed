"""The contract's heart, on the runner whose every token depends on the whole prefix: see schedules.py."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from tests.unit.worker.engine.harness import Machine, answers, events, make_request, run_alone
from tests.unit.worker.engine.schedules import World, run_all

SEEDS_PER_TEST = 40


def draw_params(rng: random.Random) -> dict[str, Any]:
    return {
        "seed": rng.randint(-5, 5),
        "temperature": rng.choice([0.0, 0.7]),
        "top_p": rng.choice([1.0, 0.9]),
        "n": rng.choice([1, 1, 1, 2, 3]),
        "stop": tuple("".join(rng.choices("abcdefgh", k=rng.randint(2, 3))) for _ in range(rng.randint(0, 2))),
        "ignore_eos": rng.random() < 0.2,
    }


WORLD = World(Machine(eos_probability=0.01, echo_probability=0.8), draw_params)


def assert_it_happened(counts: Counter[str], num_seeds: int) -> None:
    assert counts["found"] >= 10 * num_seeds, "tokens found in the cache"
    assert counts["preempted"] >= num_seeds // 10
    assert counts["displaced"] >= num_seeds // 20
    assert counts["recomputed"] >= num_seeds
    assert counts["resumed"] >= num_seeds // 4
    assert counts["requeued"] >= num_seeds // 10
    assert counts["drafted"] > counts["accepted"] >= num_seeds
    assert counts["aborted"] >= num_seeds // 20


@pytest.mark.parametrize("first_seed", range(0, 200, SEEDS_PER_TEST))
def test_answers_are_those_of_running_alone(first_seed: int) -> None:
    counts = run_all(WORLD, range(first_seed, first_seed + SEEDS_PER_TEST))
    assert_it_happened(counts, SEEDS_PER_TEST)


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", range(1000, 11_000, 100))
def test_answers_are_those_of_running_alone_ten_thousand_times(first_seed: int) -> None:
    assert_it_happened(run_all(WORLD, range(first_seed, first_seed + 100)), 100)


def test_every_cut_of_a_journal_resumes_to_the_same_answer() -> None:
    request = make_request(max_tokens=25, temperature=0.8, n=2, stop=("ab", "bcd", "cc"))
    whole = run_alone(request)
    for cut in range(len(whole)):
        journal = whole[:cut] + run_alone(request, whole[:cut])
        assert answers(journal, n=2) == answers(whole, n=2)
        if cut != 1:  # between the event and the token that it announces: it is announced again
            assert events(journal).count("first_token") == 1
