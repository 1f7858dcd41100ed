"""Deadlines in the engine's thread: between any two steps, so between two chunks of a prompt."""

from __future__ import annotations

import pytest

from shared.schemas import EndFrame, Outcome, Prefix, Request, SamplingParams, TokensFrame
from worker.backends.interface import Engine
from worker.backends.simulated import SimulatedConfig, build_simulated
from worker.deadlines import Deadlines
from worker.engine.outputs import StepOutput
from worker.engine.scheduling.config import SchedulerConfig
from worker.engine_thread import EngineThread

CHUNK = 16


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def deadlines(clock: Clock) -> Deadlines:
    return Deadlines(clock)


def made(request_id: str, *, outcome: Outcome | None = None) -> StepOutput:
    return StepOutput(request_id, [TokensFrame(0, [7], "x")], 1, outcome)


def test_each_passes_once_and_not_before_its_time(clock: Clock, deadlines: Deadlines) -> None:
    for request_id, left_ms in (("late", 2000), ("soon", 1000), ("never", 0)):
        deadlines.watch(request_id, deadlines.due(left_ms, 0))
    clock.now = 0.999
    assert deadlines.passed() == []
    clock.now = 60.0
    assert (deadlines.passed(), deadlines.passed()) == (["soon", "late"], [])


def test_the_first_token_meets_the_start_and_leaves_the_end(clock: Clock, deadlines: Deadlines) -> None:
    deadlines.watch("r1", deadlines.due(1000, 5000))
    deadlines.note([made("r1")])
    clock.now = 2.0
    assert deadlines.passed() == []
    clock.now = 5.0
    assert deadlines.passed() == ["r1"]


def test_who_ended_or_was_dropped_has_no_deadline_any_more(clock: Clock, deadlines: Deadlines) -> None:
    for request_id in ("ended", "dropped"):
        deadlines.watch(request_id, deadlines.due(1000, 1000))
    deadlines.note([made("ended", outcome=Outcome.FINISHED)])
    deadlines.forget(["dropped"])
    clock.now = 2.0
    assert deadlines.passed() == []


def test_who_is_taken_again_has_the_time_it_was_given_last(clock: Clock, deadlines: Deadlines) -> None:
    deadlines.watch("r1", deadlines.due(1000, 0))
    clock.now = 0.5
    deadlines.watch("r1", deadlines.due(1000, 0))
    clock.now = 1.0
    assert deadlines.passed() == []
    clock.now = 1.5
    assert deadlines.passed() == ["r1"]


def test_what_is_left_over_is_cleared_away(deadlines: Deadlines) -> None:
    for number in range(5000):
        deadlines.watch(f"r{number}", deadlines.due(600_000, 0))
        deadlines.note([made(f"r{number}", outcome=Outcome.FINISHED)])
    assert len(deadlines._heap) < 2000


class Steps:
    """The engine's thread, one round at a time; a step takes a second."""

    def __init__(self, clock: Clock) -> None:
        config = SimulatedConfig(scheduling=SchedulerConfig(max_step_tokens=CHUNK, itl_target_ms=0))
        self.engine: Engine = build_simulated(config, sleep=lambda _: setattr(clock, "now", clock.now + 1.0))
        self.outputs: list[StepOutput] = []
        self.thread = EngineThread(lambda: self.engine, lambda *_: None, Deadlines(clock))
        self.thread._post = lambda call, *args: self.outputs.extend(args[1])  # type: ignore[method-assign]

    def add(self, request_id: str, num_prompt_tokens: int, **left_ms: int) -> None:
        params = SamplingParams(max_tokens=4, seed=1, ignore_eos=True)
        ids = tuple(10 + i % 200 for i in range(num_prompt_tokens))
        request = Request(request_id=request_id, model="m", prompt_ids=ids, params=params)
        self.thread.add(request, [Prefix()], **left_ms)

    def run(self) -> int:
        """Rounds until there is nothing to do."""
        rounds = 0
        while self.thread._inbox or self.engine.has_work():
            self.thread._go_round(self.engine)
            rounds += 1
        return rounds


def test_a_prompt_is_given_up_between_two_chunks_when_its_time_is_over(clock: Clock) -> None:
    steps = Steps(clock)
    steps.add("r1", 10 * CHUNK, start_left_ms=3000)
    assert steps.run() == 4  # three chunks, and then the look that finds it late
    (end,) = steps.outputs
    frame = end.frames[-1]
    assert isinstance(frame, EndFrame) and frame.error is not None
    assert (end.outcome, frame.error.code) == (Outcome.EXPIRED, "deadline_exceeded")
    assert steps.engine.load().kv_blocks_used == 0


def test_others_go_on_when_one_is_given_up(clock: Clock) -> None:
    steps = Steps(clock)
    steps.add("late", 10 * CHUNK, start_left_ms=3000)
    steps.add("r2", CHUNK, start_left_ms=60_000)
    steps.run()
    assert {o.request_id: o.outcome for o in steps.outputs if o.outcome} == {
        "late": Outcome.EXPIRED,
        "r2": Outcome.FINISHED,
    }


def test_an_answer_is_cut_off_at_its_deadline(clock: Clock) -> None:
    steps = Steps(clock)
    steps.add("r1", CHUNK, start_left_ms=60_000, left_ms=2000)
    steps.run()
    assert [output.num_tokens for output in steps.outputs] == [1, 1, 0]
    assert steps.outputs[-1].outcome is Outcome.EXPIRED
