"""`make bench` end to end, small and simulated: both sides really make the tokens they report."""

from __future__ import annotations

import pytest

from loadtest.overhead import compare

pytestmark = pytest.mark.e2e


def test_the_overhead_run_measures_both_sides() -> None:
    env: dict[str, object] = {"backend": "simulated", "sim_step_us": 1000, "sim_prefill_us_per_token": 1}
    pairs = compare(streams=2, max_tokens=8, rounds=1, env=env)
    assert len(pairs) == 1 and all(side > 0 for side in pairs[0])
