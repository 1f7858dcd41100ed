"""Conversations of several turns, each prompt the last one with its answer and the next question after it.

Drawn from a seed, so that every variant of the run is asked the same at the same pace: people come evenly, read an
answer for a while, ask again. Some of them share a system prompt. A word is a token of the simulated model.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from loadtest.client import complete
from worker.backends.simulated_text import WORDS

NUM_SYSTEM_PROMPTS, SYSTEM_TOKENS = 4, 200
QUESTION_TOKENS, ANSWER_TOKENS = (60, 120), (24, 40)
READING_S = 1.0
BLOCK_TOKENS = 16  # of the simulated engine: what is cached is whole blocks
_USAGE = re.compile(rb'"prompt_tokens":(\d+),"completion_tokens":(\d+)')
_CACHED = re.compile(rb'"cached_tokens":(\d+)')


@dataclass(frozen=True, slots=True)
class Turn:
    question: str
    answer_tokens: int
    reading_s: float


@dataclass(frozen=True, slots=True)
class Conversation:
    number: int
    begins_s: float
    system: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Answered:
    """One turn. `possible_tokens`: of its prompt what its conversation had computed before, in whole blocks."""

    turn: int
    first_s: float
    prompt_tokens: int
    cached_tokens: int
    possible_tokens: int


def draw(number: int, num_turns: int, over_s: float, seed: int = 1) -> list[Conversation]:
    """So many conversations that begin evenly within `over_s`."""
    rng = random.Random(seed)
    systems = [_text(rng, SYSTEM_TOKENS) for _ in range(NUM_SYSTEM_PROMPTS)]

    def turn() -> Turn:
        question, answer = rng.randint(*QUESTION_TOKENS), rng.randint(*ANSWER_TOKENS)
        return Turn(_text(rng, question), answer, rng.expovariate(1 / READING_S))

    return [
        Conversation(i, i * over_s / number, rng.choice(systems), tuple(turn() for _ in range(num_turns)))
        for i in range(number)
    ]


async def hold_all(conversations: Sequence[Conversation], port: int, models: Sequence[str]) -> list[Answered]:
    """All of them to their ends; each always asks the same one of `models`. Raises on a wrong answer."""
    started = time.monotonic()
    held = [_hold(c, port, models[c.number % len(models)], started) for c in conversations]
    return [answered for turns in await asyncio.gather(*held) for answered in turns]


async def _hold(conversation: Conversation, port: int, model: str, started: float) -> list[Answered]:
    await asyncio.sleep(max(0.0, started + conversation.begins_s - time.monotonic()))
    prompt, known, answers = conversation.system, 0, list[Answered]()
    for number, turn in enumerate(conversation.turns, 1):
        prompt += turn.question
        text, answered = await _ask(port, model, prompt, number, turn.answer_tokens, known)
        prompt += text
        known = answered.prompt_tokens + turn.answer_tokens - 1  # the last token's KV is never computed
        answers.append(answered)
        await asyncio.sleep(turn.reading_s)
    return answers


async def _ask(
    port: int, model: str, prompt: str, number: int, max_tokens: int, known: int
) -> tuple[str, Answered]:  # fmt: skip
    texts: list[str] = []

    def on_data(data: bytes) -> None:
        if data.startswith(b"{"):
            texts.extend(choice["text"] for choice in orjson.loads(data).get("choices", ()))

    body = {
        "model": model, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    reply = await complete(port, body, on_data=on_data)
    usage, cached = _USAGE.search(reply.tail), _CACHED.search(reply.tail)
    if usage is None or int(usage.group(2)) != max_tokens:
        raise RuntimeError(f"{max_tokens} tokens were asked for: {reply}")
    prompt_tokens = int(usage.group(1))
    possible = known // BLOCK_TOKENS * BLOCK_TOKENS
    num_cached = int(cached.group(1)) if cached else 0
    return "".join(texts), Answered(number, reply.first_s, prompt_tokens, num_cached, possible)


def _text(rng: random.Random, num_tokens: int) -> str:
    return "".join(f" {word}" for word in rng.choices(WORDS, k=num_tokens))
