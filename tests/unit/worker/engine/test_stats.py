"""The engine's clock: what steps took, and how old requests are."""

from __future__ import annotations

from itertools import count
from typing import Any

from shared.schemas import ServiceClass
from tests.unit.worker.engine.harness import Machine, drain, make_request, start
from worker.engine.executor import Schedule, Work
from worker.engine.scheduling.cost_model import Pace
from worker.engine.scheduling.policies import HANDICAP_S
from worker.engine.stats import WINDOW, StepRecorder


def make_ticking(**parts: Any) -> Machine:
    """Each look at the clock finds it a second later."""
    ticks = count()
    return Machine(seconds=lambda: float(next(ticks)), **parts)


def test_parts_of_a_step_are_what_the_clock_says() -> None:
    machine = make_ticking()
    start(machine.engine, make_request(max_tokens=1))
    machine.engine.step()
    stats = machine.engine.load().last_step
    assert stats is not None
    assert (stats.schedule_s, stats.execute_s, stats.output_s, stats.seconds) == (1, 1, 1, 3)


def test_what_steps_took_is_told_to_the_pace() -> None:
    machine = make_ticking(pace=Pace(1.0))
    for first in (1, 50):
        start(machine.engine, make_request(prompt=range(first, first + 30), max_tokens=6))
        drain(machine.engine)
    assert machine.scheduler.pace.model.seconds(Work(8, 36)) is not None


def test_only_the_latest_steps_are_kept() -> None:
    recorder = StepRecorder(lambda: 0.0)
    for number in range(WINDOW + 5):
        recorder.record(Schedule(budget=1), Work(0, 0), (0.0, 0.0, 0.0), num_waiting=number, num_used=0)
    assert (len(recorder.recent), recorder.recent[0].num_waiting) == (WINDOW, 5)


def test_a_step_without_work_is_not_counted() -> None:
    machine = Machine()
    machine.engine.step()
    assert machine.engine.load().last_step is None


def test_class_and_age_of_a_request_reach_the_scheduler() -> None:
    machine = Machine(max_num_seqs=1)
    start(machine.engine, make_request("flex", service_class=ServiceClass.FLEX))
    machine.now_s = HANDICAP_S[2] - 1
    start(machine.engine, make_request("default"))
    start(machine.engine, make_request("priority", service_class=ServiceClass.PRIORITY))
    machine.now_s += 2
    start(machine.engine, make_request("late", service_class=ServiceClass.PRIORITY))
    assert [s.request_id for s in machine.scheduler.waiting] == ["priority", "flex", "late", "default"]
