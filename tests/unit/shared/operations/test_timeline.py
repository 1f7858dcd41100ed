"""A request's timeline: the steps of its journal, with the time in each."""

from __future__ import annotations

from shared.operations.timeline import steps_of, time_in, workers_of
from shared.schemas import EventFrame, Frame, TokensFrame


def taken(worker: str, at: int, attempt: int = 1) -> EventFrame:
    return EventFrame("taken", {"worker": worker, "attempt": attempt, "at": at})


TOKENS = TokensFrame(0, [1, 2], "ab")
DONE = {"admitted_at": "1000", "first_token_at": "1600", "finished_at": "3000", "state": "finished"}


def test_times_add_up_to_the_whole() -> None:
    frames: list[Frame] = [taken("w1", 1500), EventFrame("first_token", {"at": 1601}), TOKENS]
    steps = steps_of(DONE, frames, now_ms=9000)
    assert [(step.event, step.lasted_ms, step.tokens) for step in steps] == [
        ("queued", 500, 0), ("taken", 100, 0), ("first_token", 1400, 2), ("finished", 0, 0)
    ]  # fmt: skip
    assert time_in(steps) == {"waiting": 500, "prefill": 100, "decode": 1400}


def test_a_second_attempt_waits_and_decodes_on() -> None:
    frames: list[Frame] = [
        taken("w1", 1500),
        TOKENS,
        EventFrame("requeued", {"at": 2000}),
        taken("w2", 2100, 2),
        TOKENS,
    ]
    steps = steps_of(DONE, frames, now_ms=9000)
    assert time_in(steps) == {"waiting": 600, "prefill": 0, "decode": 1400}
    assert workers_of(steps) == ["w1", "w2"]


def test_what_is_not_done_lasts_until_now() -> None:
    assert [(s.event, s.lasted_ms) for s in steps_of({"admitted_at": "1000", "state": "waiting"}, [], now_ms=1700)] == [
        ("queued", 700)
    ]


def test_a_worker_whose_clock_is_behind_makes_no_step_negative() -> None:
    fields = {"admitted_at": "1000", "state": "running"}
    steps = steps_of(fields, [taken("w1", 1500), EventFrame("preempted", {"choice": 0, "at": 900})], now_ms=1800)
    assert [(step.event, step.at_ms, step.lasted_ms) for step in steps] == [
        ("queued", 1000, 500), ("taken", 1500, 0), ("preempted", 1500, 300)
    ]  # fmt: skip


def test_a_request_brought_back_by_its_gateway_says_so() -> None:
    fields = {"admitted_at": "2000", "state": "running"}
    steps = steps_of(fields, [taken("w1", 1500), TOKENS, taken("w2", 2100)], now_ms=2200)
    assert [step.event for step in steps] == ["taken", "readmitted", "taken"]
