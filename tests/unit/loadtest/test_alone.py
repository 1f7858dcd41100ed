"""Faults that strike alone: each is over, and everybody served, before the next one comes."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from loadtest.chaos import alone
from loadtest.chaos.alone import NOTHING, Alone
from loadtest.chaos.client import PAUSE_S, Answer
from loadtest.chaos.load import Load
from loadtest.chaos.questions import Question

QUESTION = Question((1,), 4, 1, 0.0, 1, ("x",))


class Deployment:
    """A fleet and its load in one; struck, it is not whole and then not served, twice each that somebody looks."""

    def __init__(self) -> None:
        self.ills: list[str] = []
        self.seen: list[str] = []

    def is_flowing(self) -> bool:
        return self._look("flowing")

    async def is_whole(self, client: Any) -> bool:
        return self._look("whole")

    def _look(self, what: str) -> bool:
        if self.ills and self.ills[0] == what:
            self.seen.append("ill")
            self.ills.pop(0)
            return False
        self.seen.append("ill" if self.ills else "well")
        return True

    async def strike(self, kind: str) -> str:
        self.seen.append(kind)
        self.ills = ["whole", "whole", "flowing", "flowing"]
        return "worker0"


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_NOTHING_S", 0.0), ("_CALM_S", 0.0), ("_POLL_S", 0.0)):
        monkeypatch.setattr(alone, name, seconds)


def alone_in(deployment: Deployment) -> Alone:
    return Alone(cast(Any, deployment), cast(Load, deployment), deployment.strike)


async def test_the_next_fault_waits_until_everybody_is_served_again() -> None:
    deployment = Deployment()
    run = alone_in(deployment)
    await run.run(["kill", "cut"], lambda _: None)
    for before, after in zip(deployment.seen, deployment.seen[1:], strict=False):
        assert after not in ("kill", "cut") or before == "well"
    assert [fault.kind for fault in run.struck] == [NOTHING, "kill", "cut"]
    assert all(a.ended <= b.began for a, b in zip(run.struck, run.struck[1:], strict=False))


async def test_what_does_not_recover_is_remarked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone, "_SETTLES_S", 0.0)
    run = alone_in(Deployment())
    await run.run(["kill"], lambda _: None)
    assert any("kill alone" in remark for remark in run.remarks)


@pytest.mark.parametrize(
    ("answer", "silent_s", "flows"),
    [
        (Answer(QUESTION), 0.0, True),
        (Answer(QUESTION), 2 * PAUSE_S, False),
        (Answer(QUESTION, is_streamed=False), 2 * PAUSE_S, True),
        (Answer(QUESTION, end="finished"), 2 * PAUSE_S, True),
        (Answer(QUESTION, end="broken"), 0.0, False),
        (Answer(QUESTION, end="unanswered"), 0.0, False),
    ],
)
def test_who_is_served(answer: Answer, silent_s: float, flows: bool) -> None:
    answer.last_event_at = time.monotonic() - silent_s
    assert answer.is_flowing() is flows


def test_an_answer_in_one_piece_has_no_pause() -> None:
    streamed, plain = Answer(QUESTION), Answer(QUESTION, is_streamed=False)
    for answer in (streamed, plain):
        answer.last_event_at -= 2 * PAUSE_S
        answer.note_event()
    assert (len(streamed.pauses), plain.pauses) == (1, [])
