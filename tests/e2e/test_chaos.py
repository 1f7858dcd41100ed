"""A short storm by a directed schedule, and some drills: the machinery of `headrace chaos`, on real processes."""

from __future__ import annotations

import pytest

from loadtest.chaos import drill
from loadtest.chaos.storm import Storm, simulated

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]
# Few faults, each of another nature; the seed makes it the same schedule every time.
FEW = {"worker_kill": 2, "worker_stop": 1, "gateway_kill": 1, "redis_kill": 1, "redis_blackhole": 1, "script_flush": 1}


async def test_a_short_storm_breaks_no_promise() -> None:
    plan = simulated(5, 25, num_workers=2, num_clients=12, interval_s=3.0, kinds=FEW)
    report = await Storm(plan, print).run()
    assert (report.violations(), len(report.injected) >= 5) == ([], True), "\n".join(report.lines())
    assert {fault.kind for fault in report.alone} > set(FEW)


@pytest.mark.parametrize(
    "name",
    [
        "only_worker_cut_off",
        "drain_without_redis",
        "reply_lost_take",
        "two_clients_one_leaves",
        "poison",
        "model_paused",
        "deadline_while_paused",
    ],
)
async def test_a_drill_shows_what_it_must(name: str) -> None:
    outcome = await drill.Run(name, seed=1).run()
    assert outcome.broken == []
