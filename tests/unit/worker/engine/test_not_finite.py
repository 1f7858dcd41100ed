"""What the engine does with a token that is none, whatever runner says so."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from shared.schemas import EndFrame, Outcome
from tests.unit.worker.engine.harness import Machine, answer, drain, make_request, run_alone, start
from worker.engine.executor import Executor, Launched, NewTokens, Schedule
from worker.engine.request import NOT_FINITE

PROMPT = range(1, 20)


@dataclass
class Broken:
    schedule: Schedule
    inner: Launched

    def wait(self) -> NewTokens:
        made = self.inner.wait()
        for i, sequence in enumerate(self.schedule.sampled):
            if sequence.request_id == "broken" and sequence.num_generated_tokens == 2:
                made.token_ids[i] = NOT_FINITE
        return made


class Breaking:
    """An executor whose model fails for the request `broken`, once it has made two tokens of it."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner

    def launch(self, schedule: Schedule, after: Launched | None = None) -> Launched:
        return Broken(schedule, self.inner.launch(schedule, after.inner if isinstance(after, Broken) else None))

    def close(self) -> None:
        self.inner.close()


@pytest.mark.parametrize("overlaps", [False, True])
def test_the_request_fails_with_what_it_has_and_the_others_go_on(overlaps: bool) -> None:
    machine = Machine(overlaps=overlaps)
    machine.engine._executor = Breaking(machine.engine._executor)
    start(machine.engine, make_request("broken", prompt=PROMPT, n=2))
    start(machine.engine, make_request("sound", seed=5, temperature=1.0))
    journals = drain(machine.engine)
    end = journals["broken"][-1]
    assert isinstance(end, EndFrame) and end.outcome is Outcome.FAILED
    assert end.error is not None and end.error.code == "output_not_finite"
    assert answer(journals["sound"]) == answer(run_alone(make_request("sound", seed=5, temperature=1.0)))
    assert machine.scheduler.kv.num_used == 0


@pytest.mark.parametrize("overlaps", [False, True])
def test_its_blocks_are_not_found_again(overlaps: bool) -> None:
    machine = Machine(overlaps=overlaps)
    machine.engine._executor = Breaking(machine.engine._executor)
    start(machine.engine, make_request("broken", prompt=PROMPT))
    drain(machine.engine)
    assert len(machine.scheduler.kv.cache) == 0
