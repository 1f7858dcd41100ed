"""Scheduling policies: an object asked two questions, who next and who yields.

A policy sees sequences and decides; it moves nothing. The scheduler puts a preempted sequence at the head of
the waiting line, so a policy that takes the head resumes it first.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from worker.engine.request import Sequence


class Policy(Protocol):
    def who_next(self, waiting: deque[Sequence]) -> Sequence:
        """Which of the waiting (at least one) is to be admitted next."""
        ...

    def who_yields(self, running: list[Sequence]) -> Sequence:
        """Which of the running (at least two) gives up its blocks.

        Liveness needs an order by progress: the sequence with the most computed tokens must not be the answer.
        """
        ...


class FirstComeFirstServed:
    """The head is next; the one with the fewest tokens to recompute yields, of equals the last to come."""

    def who_next(self, waiting: deque[Sequence]) -> Sequence:
        return waiting[0]

    def who_yields(self, running: list[Sequence]) -> Sequence:
        return min(running, key=_cost_of_yielding)


def _cost_of_yielding(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.num_computed_tokens, -sequence.arrival, -sequence.choice
