"""When a worker is taken for failing, and how it is let back in."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry

from shared.observability import WorkerMetrics
from worker.condition.phase import Phase, Standing
from worker.condition.quarantine import Failures, Quarantine
from worker.condition.warmup import Probe

GOOD = Probe(1, "", is_whole=True, seconds=0.1)
BAD = Probe(1, "NaN", is_whole=True, seconds=0.1)


def standing() -> Standing:
    return Standing(WorkerMetrics(CollectorRegistry()))


def test_so_many_different_requests_within_the_window_are_too_many() -> None:
    failures = Failures(limit=3, window_s=10)
    assert [failures.note(name, at) for name, at in [("a", 0), ("b", 1), ("a", 2), ("c", 3)]] == [
        False, False, False, True,
    ]  # fmt: skip


def test_one_request_that_fails_again_and_again_is_no_reason() -> None:
    failures = Failures(limit=2, window_s=10)
    assert not any(failures.note("poison", at) for at in range(20))


def test_what_is_older_than_the_window_does_not_count_and_no_limit_is_never_too_much() -> None:
    failures = Failures(limit=2, window_s=10)
    assert [failures.note("a", 0), failures.note("b", 11)] == [False, False]
    assert not Failures(limit=0, window_s=10).note("a", 0)


async def test_it_ends_with_the_first_good_probe_and_each_bad_one_doubles_the_pause() -> None:
    told, answers = standing(), iter([BAD, BAD, GOOD])
    quarantine = Quarantine(told, Failures(1, 10), first_pause_s=0.001)

    async def probe() -> Probe:
        return next(answers)

    quarantine.note("not_finite", "r1")
    assert (told.phase, quarantine.begun.is_set()) == (Phase.QUARANTINED, True)
    keeper = asyncio.create_task(quarantine.run(probe))
    await asyncio.wait_for(quarantine.over.wait(), 5)
    keeper.cancel()
    assert (told.phase, quarantine.pause_s, next(answers, None)) == (Phase.PULLING, 0.004, None)


async def test_a_relapse_within_the_window_begins_with_twice_the_pause() -> None:
    quarantine = Quarantine(standing(), Failures(1, 60), first_pause_s=0.001)

    async def probe() -> Probe:
        return GOOD

    keeper = asyncio.create_task(quarantine.run(probe))
    quarantine.note("stall", "s1")
    await asyncio.wait_for(quarantine.over.wait(), 5)
    quarantine.note("stall", "s2")
    keeper.cancel()
    assert quarantine.pause_s == 0.002


def test_probes_over_http_say_the_phase() -> None:
    told = standing()
    assert told.answer("/health/ready") == (
        "503 Service Unavailable", "application/json", b'{"phase":"loading","why":""}',
    )  # fmt: skip
    told.enter(Phase.PULLING)
    assert told.answer("/health/ready")[0] == "200 OK"
    assert b'headrace_worker_phase{phase="pulling"} 1.0' in told.answer("/metrics")[2]
    told.is_alive = lambda: False
    assert [told.answer(path)[0][:3] for path in ("/health/live", "/health/ready", "/elsewhere")] == [
        "503",
        "503",
        "404",
    ]


def test_who_drains_does_nothing_else_any_more() -> None:
    told = standing()
    told.enter(Phase.DRAINING)
    told.enter(Phase.PULLING)
    assert told.phase is Phase.DRAINING
