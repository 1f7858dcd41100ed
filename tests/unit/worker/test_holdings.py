"""What a worker tells of a request it holds: how many tokens it has, now and then and at its end."""

from __future__ import annotations

from shared.schemas import EndFrame, Outcome, TokensFrame, Usage
from worker.engine.outputs import StepOutput
from worker.holdings import TELL_EVERY, Held


def totals_told(num_steps: int) -> list[int]:
    """What each of so many one-token emits told, all of them answered."""
    held = Held("r", "w/1/1", {"g"}, bytearray(), 0, 0)
    told: list[int] = []
    for i in range(num_steps):
        held.add(StepOutput("r", [TokensFrame(0, [i], "x")], 1))
        emission = held.emission()
        told.append(emission.total_tokens)
        held.advance(emission)
    return told


def test_the_number_of_tokens_is_told_with_the_first_and_then_now_and_then() -> None:
    told = totals_told(2 * TELL_EVERY + 1)
    assert [total for total in told if total] == [1, 1 + TELL_EVERY, 1 + 2 * TELL_EVERY]


def test_it_is_told_until_it_is_heard() -> None:
    held = Held("r", "w/1/1", {"g"}, bytearray(), 0, 0)
    held.add(StepOutput("r", [TokensFrame(0, [7], "x")], 1))
    assert [held.emission().total_tokens for _ in range(2)] == [1, 1]


def test_it_is_told_with_the_end() -> None:
    held = Held("r", "w/1/1", {"g"}, bytearray(), 0, 0)
    for frames, outcome in (
        ([TokensFrame(0, [7, 8], "x")], None),
        ([EndFrame(Outcome.FINISHED, Usage(1, 2))], Outcome.FINISHED),
    ):
        held.add(StepOutput("r", list(frames), 2 if outcome is None else 0, outcome))
        emission = held.emission()
        held.advance(emission)
    assert (emission.final, emission.total_tokens) == ("finished", 2)
