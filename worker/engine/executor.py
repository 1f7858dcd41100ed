"""The seam between scheduling and computing: a schedule goes in, and token ids come out, now or when they are there.

The engine is given an executor by its backend and so imports no model code. A schedule names sequences; an
executor reads `token_ids`, `num_computed_tokens`, `block_table`, `row`, `params`, `banned_ids` and `automaton` of
each, and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from shared.schemas import TokenLogprobs
from worker.engine.request import Sequence

# Of the prompts' tokens that a step gives logprobs of: each takes a row of logits, as wide as the vocabulary.
MAX_SCORED_TOKENS = 64
# What a step found for the prompt of a sequence; None where the model failed.
Scores = dict[Sequence, list[TokenLogprobs] | None]


class Work(NamedTuple):
    """What a step computes. A sequence's `n` tokens from position `p` on make n * p + n * (n + 1) / 2 pairs: each
    token with each one it attends to."""

    tokens: int
    pairs: int


@dataclass(slots=True)
class Schedule:
    """One step. `chunks` says how many of its next tokens each sequence computes, decodes first; `sampled` are
    those that get all their tokens computed and so are given a new one, in the order of `chunks`. `drafts` are guesses
    of what comes next, computed (and counted in `chunks`) after all tokens of their sequences; none for most. `scored`
    says of how many prompt tokens logprobs are to be told; who has such is not sampled in the same step.

    What is counted in tokens concerns those that began to run: `num_asked` were looked for in the prefix cache and
    `num_found` found, of prompts that ran for the first time `num_prompt` and `num_prompt_found`; `num_recomputed`
    had been computed before a preemption. `num_displaced` of the preempted made way for a higher class. `num_accepted`
    of the drafts were right, which is known when the step is over. `follows` is a step that has not ended: each
    sequence here computes the token that it gets there, which is not among its `token_ids` yet.
    """

    budget: int
    chunks: dict[Sequence, int] = field(default_factory=dict[Sequence, int])
    sampled: list[Sequence] = field(default_factory=list[Sequence])
    preempted: list[Sequence] = field(default_factory=list[Sequence])
    drafts: dict[Sequence, list[int]] = field(default_factory=dict[Sequence, list[int]])
    scored: dict[Sequence, int] = field(default_factory=dict[Sequence, int])
    num_displaced: int = 0
    num_asked: int = 0
    num_found: int = 0
    num_prompt: int = 0
    num_prompt_found: int = 0
    num_recomputed: int = 0
    num_accepted: int = 0
    follows: Schedule | None = None

    @property
    def num_drafted(self) -> int:
        return sum(map(len, self.drafts.values())) if self.drafts else 0

    def give(self, sequence: Sequence) -> None:
        """As many of the sequence's next tokens as the budget allows; none where others are scored already."""
        num_tokens = min(len(sequence.token_ids) - sequence.num_computed_tokens, self.budget)
        if sequence.num_tokens_to_score:
            num_tokens = self._score(sequence, num_tokens)
        if num_tokens:
            self.chunks[sequence] = num_tokens
            self.budget -= num_tokens

    def give_one(self, sequence: Sequence) -> None:
        """The token that a decode computes; there must be budget."""
        self.chunks[sequence] = 1
        self.budget -= 1

    def give_drafts(self, sequence: Sequence, drafts: list[int]) -> None:
        """Beside the one token of a decode; there must be budget."""
        self.drafts[sequence] = drafts
        self.chunks[sequence] += len(drafts)
        self.budget -= len(drafts)

    def enter(self, sequence: Sequence) -> None:
        """The sequence begins to run, on what the cache had of it."""
        num_found = sequence.num_computed_tokens
        self.num_asked += len(sequence.token_ids)
        self.num_found += num_found
        self.num_recomputed += max(0, sequence.num_lost_tokens - num_found)
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = min(num_found, sequence.num_prompt_tokens)
            self.num_prompt += sequence.num_prompt_tokens
            self.num_prompt_found += sequence.num_cached_tokens
        self.give(sequence)

    def take_back(self, sequence: Sequence) -> None:
        """Undo what the sequence was given, if anything."""
        self.budget += self.chunks.pop(sequence, 0)
        self.scored.pop(sequence, None)

    def _score(self, sequence: Sequence, num_tokens: int) -> int:
        """How many of `num_tokens` to compute, so that no more are scored than there are rows for. Before those are
        tokens scored earlier, which are computed again."""
        num_again = sequence.num_scored_tokens - sequence.num_computed_tokens
        num_rows = min(sequence.num_tokens_to_score, MAX_SCORED_TOKENS - sum(self.scored.values()))
        num_tokens = min(num_tokens, num_again + num_rows)
        if num_tokens > num_again:
            self.scored[sequence] = num_tokens - num_again
        return num_tokens

    def work(self) -> Work:
        """What has been given so far."""
        num_tokens = num_pairs = 0
        for sequence, given in self.chunks.items():
            num_tokens += given
            num_pairs += given * sequence.num_computed_tokens + given * (given + 1) // 2
        return Work(num_tokens, num_pairs)

    def seal(self) -> None:
        """No more changes: work out `sampled`."""
        self.sampled = [
            sequence
            for sequence, given in self.chunks.items()
            if given == len(sequence.token_ids) - sequence.num_computed_tokens or sequence in self.drafts
        ]


@dataclass(slots=True)
class NewTokens:
    """What a step made: a token for each of `schedule.sampled` (NOT_FINITE where the model failed), and where it has
    drafts one after each of them too; and by index in `token_ids` the logprobs that were asked. `scored` is of
    each of `schedule.scored`."""

    token_ids: list[int]
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict[int, TokenLogprobs])
    scored: Scores = field(default_factory=dict[Sequence, list[TokenLogprobs] | None])


class Taken(NamedTuple):
    """What a sequence got of that: its tokens, the text they release, and the index of the first of them."""

    sample: int
    token_ids: list[int]
    text: str


class Launched(Protocol):
    def wait(self) -> NewTokens:
        """What the step made, when it is there. Called once."""
        ...


@dataclass(slots=True)
class Computed:
    """A step that was over when `launch` returned."""

    made: NewTokens

    def wait(self) -> NewTokens:
        return self.made


class Executor(Protocol):
    def launch(self, schedule: Schedule, after: Launched | None = None) -> Launched:
        """Begin one step that is not empty. `after` is the step that the schedule follows, if it follows one; steps are
        computed one after the other.

        Raises only when the whole engine is unusable; so does `wait`.
        """
        ...

    def close(self) -> None: ...
