"""What clients ask, and the text each must get: known beforehand, so that every byte can be checked.

The simulated backend's answers come from the backend itself, in this process and with steps that cost nothing. A real
model's come from an undisturbed run over the very stack that is broken later.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from shared.schemas import Prefix, Request, SamplingParams, prefixes_of
from worker.backends.simulated import SimulatedConfig, build_simulated
from worker.engine.outputs import StepOutput


@dataclass(frozen=True, slots=True)
class Question:
    """`expected` holds one text a choice."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    seed: int
    temperature: float
    n: int
    expected: tuple[str, ...] = ()

    def body(self, model: str, *, stream: bool) -> dict[str, object]:
        """For /v1/completions."""
        return {
            "model": model, "prompt": self.prompt_ids, "max_tokens": self.max_tokens, "seed": self.seed, "n": self.n,
            "temperature": self.temperature, "ignore_eos": True, "stream": stream,
        }  # fmt: skip


# What a third of simulated questions begin with: long enough that workers are preferred for it.
BEGINNINGS = tuple(tuple(range(10 + i, 170 + i)) for i in range(4))


class SimulatedQuestions:
    """A new question each time, answered by the simulated backend. Some begin alike, so that lanes are drawn in."""

    def __init__(self, rng: random.Random, max_tokens: tuple[int, int]) -> None:
        self._rng = rng
        self._max_tokens = max_tokens
        self._engine = build_simulated(SimulatedConfig(), sleep=lambda _seconds: None)

    def draw(self) -> Question:
        rng = self._rng
        question = _question(rng, self._max_tokens, rng.choice((0.0, 1.0)), rng.choice((1, 1, 1, 2)))
        if rng.random() < 1 / 3:
            question = replace(question, prompt_ids=rng.choice(BEGINNINGS) + question.prompt_ids)
        return replace(question, expected=self._answers_of(question))

    def _answers_of(self, question: Question) -> tuple[str, ...]:
        params = SamplingParams(
            max_tokens=question.max_tokens, seed=question.seed, temperature=question.temperature, n=question.n,
            ignore_eos=True,
        )  # fmt: skip
        request = Request(request_id="q", model="simulated", prompt_ids=question.prompt_ids, params=params)
        self._engine.add(request, [Prefix()] * question.n)
        frames = [frame for output in self._steps() for frame in output.frames]
        return tuple(prefix.text for prefix in prefixes_of(frames, question.n))

    def _steps(self) -> Iterator[StepOutput]:
        while self._engine.has_work():
            yield from self._engine.step()


class RecordedQuestions:
    """A fixed set of questions, greedy ones, whose answers were recorded."""

    def __init__(self, rng: random.Random, answered: Sequence[Question]) -> None:
        self._rng = rng
        self._answered = answered

    def draw(self) -> Question:
        return self._rng.choice(self._answered)


def unanswered(rng: random.Random, number: int, max_tokens: tuple[int, int]) -> list[Question]:
    """Greedy questions to record the answers of."""
    return [_question(rng, max_tokens, 0.0, 1) for _ in range(number)]


def _question(rng: random.Random, max_tokens: tuple[int, int], temperature: float, n: int) -> Question:
    prompt_ids = tuple(rng.randrange(10, 250) for _ in range(rng.randint(4, 48)))
    return Question(prompt_ids, rng.randint(*max_tokens), rng.randrange(1 << 31), temperature, n)
