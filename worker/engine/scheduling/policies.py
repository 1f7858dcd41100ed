"""Scheduling policies: an object asked who next, and who yields. It sees sequences and decides; it moves nothing.

The line is ordered by `place`, in seconds, and a place never changes while a sequence waits. So age needs no clock:
one with a handicap of ten seconds is passed only by those that come within ten seconds after it, and nobody starves.
A strictly higher rank may take the place of one that runs, until that one is older by its handicap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from worker.engine.request import Sequence

# What the classes priority, default, flex and batch come later than they came.
HANDICAP_S = (0.0, 10.0, 60.0, 600.0)
# A token more to compute or to make costs a place so much: half a second of a slow model's decoding is ten tokens.
HANDICAP_S_PER_TOKEN = 0.02
# Who yielded so often yields again only where everybody did: recomputing is what a full cache costs.
MAX_PREEMPTIONS = 3


class Policy(Protocol):
    def place(self, sequence: Sequence) -> float:
        """Where a waiting sequence stands: the least is next. Constant while it waits."""
        ...

    def rank(self, sequence: Sequence) -> int:
        """0 is the highest. Who yields goes back to the head of its own rank."""
        ...

    def who_yields(self, running: Iterable[Sequence], cost: Callable[[Sequence], int]) -> Sequence:
        """Which of the running (at least one) gives up its blocks; `cost` is how much it would compute again."""
        ...


class FirstComeFirstServed:
    """All are of one rank; the one with the least to compute again yields, of equals the last to come."""

    def place(self, sequence: Sequence) -> float:
        return sequence.arrival_s

    def rank(self, sequence: Sequence) -> int:
        return 0

    def who_yields(self, running: Iterable[Sequence], cost: Callable[[Sequence], int]) -> Sequence:
        def reluctance(sequence: Sequence) -> tuple[bool, int, int, int, int]:
            is_spared = sequence.num_preemptions >= MAX_PREEMPTIONS
            return is_spared, -self.rank(sequence), cost(sequence), -sequence.arrival, -sequence.choice

        return min(running, key=reluctance)


class ByClass(FirstComeFirstServed):
    """By service class and age; the lowest class yields first."""

    def place(self, sequence: Sequence) -> float:
        return sequence.arrival_s + HANDICAP_S[sequence.rank]

    def rank(self, sequence: Sequence) -> int:
        return sequence.rank


class ShortestRemaining(ByClass):
    """As by class, but within one the shortest goes first, until a longer one has waited for the difference."""

    def place(self, sequence: Sequence) -> float:
        num_left = len(sequence.token_ids) + sequence.params.max_tokens - sequence.num_generated_tokens
        return super().place(sequence) + HANDICAP_S_PER_TOKEN * num_left


POLICIES: dict[str, Callable[[], Policy]] = {
    "fcfs": FirstComeFirstServed,
    "priority": ByClass,
    "shortest": ShortestRemaining,
}
