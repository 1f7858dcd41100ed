"""How many workers are wanted: the rule itself, without a queue."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.operations.scaling.wanted import Need, Policy, Work, bounded, needed, wait_s

# Four workers of 8 slots, each 100 tokens a second.
BUSY = Work(
    waiting=50, expected_tokens=5000, busy_slots=32, live_workers=4, slots=32, worker_tokens_per_s=100.0
)  # fmt: skip
IDLE = Work(waiting=0, expected_tokens=0, busy_slots=0, live_workers=4, slots=32, worker_tokens_per_s=100.0)
POLICY = Policy(target_wait_s=5, utilisation=0.8, min_workers=0, max_workers=100, idle_s=60)

policies = st.builds(
    Policy,
    target_wait_s=st.floats(0.1, 600),
    utilisation=st.floats(0.05, 1),
    min_workers=st.integers(0, 20),
    max_workers=st.integers(20, 500),
    idle_s=st.floats(0, 1000),
    tolerance=st.floats(0, 0.5),
)
works = st.builds(
    Work,
    waiting=st.integers(0, 10_000),
    expected_tokens=st.floats(0, 1e7),
    busy_slots=st.integers(0, 2000),
    live_workers=st.integers(0, 100),
    slots=st.integers(0, 5000),
    kv_use=st.floats(0, 1),
    worker_tokens_per_s=st.floats(0, 1e5),
    idle_s=st.floats(0, 2000),
    is_paused=st.booleans(),
)


@pytest.mark.parametrize(
    ("work", "wanted"),
    [
        (BUSY, Need(10, "wait")),  # 5,000 tokens in 5 s by 100 a second each
        (replace(BUSY, expected_tokens=100), Need(5, "use")),  # 4 / 0.8
        (replace(BUSY, expected_tokens=100, busy_slots=8, kv_use=0.95), Need(5, "use")),
        (replace(BUSY, worker_tokens_per_s=0), Need(5, "use")),  # nothing has shown how fast they are
        (replace(BUSY, live_workers=0, slots=0, worker_tokens_per_s=0), Need(1, "work")),  # from zero: one comes first
        (replace(BUSY, busy_slots=0, live_workers=4, is_paused=True), Need(1, "work")),
        (replace(IDLE, busy_slots=1), Need(1, "work")),
        (replace(IDLE, idle_s=59), Need(1, "recent")),
        (replace(IDLE, idle_s=60), Need(0, "idle")),
        (replace(IDLE, idle_s=0, live_workers=0, slots=0), Need(0, "idle")),
    ],
)
def test_what_is_wanted(work: Work, wanted: Need) -> None:
    assert needed(work, POLICY) == wanted


def test_bounds_are_of_all_revisions_together_and_what_is_little_too_many_stays() -> None:
    policy = Policy(min_workers=2, max_workers=20, tolerance=0.1)
    assert [bounded(needs, policy) for needs in ((), (1, 0), (3, 4), (30, 1))] == [2, 2, 7, 20]
    assert [bounded((9,), policy, current=current) for current in (0, 8, 9, 10, 11, 30)] == [9, 9, 9, 10, 9, 9]


def test_the_wait_is_what_waits_over_what_the_fleet_does() -> None:
    assert wait_s(BUSY) == 12.5
    assert wait_s(replace(BUSY, waiting=0, expected_tokens=0)) == 0.0
    assert wait_s(replace(BUSY, is_paused=True)) is None and wait_s(replace(BUSY, live_workers=0)) is None


@given(works, policies, st.integers(0, 5000), st.floats(0, 1e6))
def test_it_never_falls_as_more_waits(work: Work, policy: Policy, more: int, tokens: float) -> None:
    fuller = replace(work, waiting=work.waiting + more, expected_tokens=work.expected_tokens + (tokens if more else 0))
    assert needed(fuller, policy).workers >= needed(work, policy).workers


@given(works, policies, st.integers(0, 2000))
def test_it_never_falls_as_more_runs(work: Work, policy: Policy, more: int) -> None:
    assert needed(replace(work, busy_slots=work.busy_slots + more), policy).workers >= needed(work, policy).workers


@given(works, policies)
def test_it_is_never_less_than_what_runs_needs(work: Work, policy: Policy) -> None:
    if work.live_workers and work.slots:
        per_worker = work.slots / work.live_workers
        assert needed(work, policy).workers >= math.floor(work.busy_slots / per_worker - 1e-6)


@given(works, policies, st.integers(0, 1000))
def test_it_is_within_the_bounds_and_none_only_where_nothing_waits(work: Work, policy: Policy, current: int) -> None:
    need = needed(work, policy).workers
    wanted = bounded((need,), policy, current)
    assert policy.min_workers <= wanted <= policy.max_workers
    assert wanted > 0 or (work.waiting == 0 and work.busy_slots == 0)
    assert need > 0 or (work.idle_s >= policy.idle_s or work.live_workers == 0)


@given(works, policies)
def test_with_that_many_the_wait_is_within_its_target(work: Work, policy: Policy) -> None:
    wanted = needed(work, policy).workers
    expected = wait_s(replace(work, live_workers=wanted))
    assert expected is None or expected <= policy.target_wait_s * (1 + 1e-6)


@given(works, policies, st.lists(st.integers(0, 600), min_size=2, max_size=2), st.integers(0, 600))
def test_the_bounds_keep_the_order(work: Work, policy: Policy, needs: list[int], current: int) -> None:
    fewer, more = sorted(needs)
    assert bounded((fewer,), policy, current) <= bounded((more,), policy, current)
