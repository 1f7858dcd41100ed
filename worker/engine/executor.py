"""The seam between scheduling and computing: a schedule goes in, token ids come out.

The engine is given an executor by its backend and so imports no model code. A schedule names sequences; an
executor reads `token_ids`, `num_computed_tokens`, `block_table`, `row` and `params` of each, and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from worker.engine.request import Sequence


@dataclass(slots=True)
class Schedule:
    """One step. `chunks` says how many of its next tokens each sequence computes, decodes first; `sampled` are
    those that get all their tokens computed and so are given a new one, in the order of `chunks`."""

    budget: int
    chunks: dict[Sequence, int] = field(default_factory=dict[Sequence, int])
    sampled: list[Sequence] = field(default_factory=list[Sequence])
    preempted: list[Sequence] = field(default_factory=list[Sequence])

    def give(self, sequence: Sequence) -> None:
        """As many of the sequence's next tokens as the budget allows."""
        num_tokens = min(sequence.num_tokens_to_compute, self.budget)
        self.chunks[sequence] = num_tokens
        self.budget -= num_tokens

    def take_back(self, sequence: Sequence) -> None:
        """Undo what the sequence was given, if anything."""
        self.budget += self.chunks.pop(sequence, 0)

    def seal(self) -> None:
        """No more changes: work out `sampled`."""
        self.sampled = [sequence for sequence, given in self.chunks.items() if given == sequence.num_tokens_to_compute]


class Executor(Protocol):
    def execute(self, schedule: Schedule) -> list[int]:
        """Compute one step that is not empty; returns the new token of each of `schedule.sampled`.

        Raises only when the whole engine is unusable.
        """
        ...

    def close(self) -> None: ...
