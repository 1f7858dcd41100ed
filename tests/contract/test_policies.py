"""What holds for every scheduling policy (worker/engine/scheduling/policies.py)."""

from __future__ import annotations

import random

import pytest

from shared.config import WorkerSettings
from tests.unit.worker.engine.driving import BATCH, DEFAULT, PRIORITY, add, make_scheduler, make_sequence, step
from worker.engine.kv_cache_manager import CacheScope
from worker.engine.request import Sequence
from worker.engine.scheduling.policies import HANDICAP_S, HANDICAP_S_PER_TOKEN, MAX_PREEMPTIONS, POLICIES, Policy

LONGEST_WAIT_S = max(HANDICAP_S) + 100 * HANDICAP_S_PER_TOKEN


@pytest.fixture(params=sorted(POLICIES))
def policy(request: pytest.FixtureRequest) -> Policy:
    return POLICIES[request.param]()


def cost(sequence: Sequence) -> int:
    return len(sequence.token_ids)


def test_of_equals_the_first_to_come_is_next_and_the_last_yields(policy: Policy) -> None:
    first, last = make_sequence(3), make_sequence(3, arrival=1)
    assert policy.place(first) < policy.place(last)
    assert policy.who_yields([first, last], cost) is last


def test_nobody_is_passed_for_ever(policy: Policy) -> None:
    old = make_sequence(50, rank=BATCH, max_tokens=50)
    late = make_sequence(1, arrival=1, arrival_s=LONGEST_WAIT_S + 1, rank=PRIORITY, max_tokens=1)
    assert policy.place(old) < policy.place(late)


def test_a_place_does_not_change_while_one_waits(policy: Policy) -> None:
    scheduler = make_scheduler(max_num_seqs=1, policy=policy)
    add(scheduler, 3)
    waiting = add(scheduler, 3, arrival=1)
    before = policy.place(waiting)
    for _ in range(5):
        step(scheduler)
    assert policy.place(waiting) == before


def test_of_one_class_who_has_least_to_compute_again_yields(policy: Policy) -> None:
    long, short = make_sequence(9), make_sequence(3)
    assert policy.who_yields([long, short], cost) is short


def test_who_yielded_often_is_spared_while_there_is_another(policy: Policy) -> None:
    often, other = make_sequence(3, rank=DEFAULT), make_sequence(90, rank=PRIORITY)
    often.num_preemptions = MAX_PREEMPTIONS
    assert policy.who_yields([often, other], cost) is other


def test_the_one_with_most_to_lose_of_the_highest_rank_stays(policy: Policy) -> None:
    """So preemption always makes progress."""
    rng = random.Random(1)
    for _ in range(50):
        running = [make_sequence(rng.randint(1, 50), arrival=i, rank=rng.randint(0, 3)) for i in range(4)]
        highest = min(policy.rank(sequence) for sequence in running)
        dearest = max((s for s in running if policy.rank(s) == highest), key=lambda s: (cost(s), -s.arrival))
        assert policy.who_yields(running, cost) is not dearest


def test_settings_name_the_policies_and_scopes_that_there_are() -> None:
    for name in POLICIES:
        assert WorkerSettings(scheduling_policy=name).scheduling_policy == name  # type: ignore[arg-type]
    for scope in CacheScope:
        assert WorkerSettings(prefix_cache=scope.value).prefix_cache == scope
