"""Conversations of several turns, each prompt the last one with its answer and the next question after it.

Drawn from a seed, so that every variant of the run is asked the same at the same pace: people come evenly, read an
answer for a while, ask again. Some of them share a system prompt.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from worker.backends.simulated_text import WORDS

NUM_SYSTEM_PROMPTS, SYSTEM_TOKENS = 4, 200
QUESTION_TOKENS, ANSWER_TOKENS = (60, 120), (24, 40)
READING_S = 1.0
BLOCK_TOKENS = 16  # of the simulated engine: what is cached is whole blocks
FIRST_WORD = 300  # token ids of questions in virtual time; any will do


@dataclass(frozen=True, slots=True)
class Turn:
    question: tuple[int, ...]
    answer_tokens: int
    reading_s: float


@dataclass(frozen=True, slots=True)
class Conversation:
    number: int
    begins_s: float
    system: tuple[int, ...]
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Answered:
    """One turn. `possible_tokens`: of its prompt what its conversation had computed before, in whole blocks."""

    turn: int
    first_s: float
    prompt_tokens: int
    cached_tokens: int
    possible_tokens: int


def draw(number: int, num_turns: int, per_s: float, seed: int = 1) -> list[Conversation]:
    """So many conversations, of which `per_s` begin a second."""
    rng = random.Random(seed)
    systems = [_words(rng, SYSTEM_TOKENS) for _ in range(NUM_SYSTEM_PROMPTS)]

    def turn() -> Turn:
        question, answer = rng.randint(*QUESTION_TOKENS), rng.randint(*ANSWER_TOKENS)
        return Turn(_words(rng, question), answer, rng.expovariate(1 / READING_S))

    return [
        Conversation(i, i / per_s, rng.choice(systems), tuple(turn() for _ in range(num_turns))) for i in range(number)
    ]


def text_of(words: tuple[int, ...]) -> str:
    """A word is a token of the simulated model."""
    return "".join(f" {WORDS[word - FIRST_WORD]}" for word in words)


def possible_tokens(num_known: int) -> int:
    return num_known // BLOCK_TOKENS * BLOCK_TOKENS


def _words(rng: random.Random, num_tokens: int) -> tuple[int, ...]:
    return tuple(FIRST_WORD + rng.randrange(len(WORDS)) for _ in range(num_tokens))
