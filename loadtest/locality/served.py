"""The fleets as real processes, asked over HTTP: a check of what virtual time says, as good as the machine is idle."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from loadtest.client import complete
from loadtest.locality.conversations import Answered, Conversation, possible_tokens, text_of
from loadtest.locality.variants import NUM_WORKERS, Variant
from loadtest.stack import Stack
from shared import keys
from shared.config import RedisSettings
from shared.redis_client import connect

_USAGE = re.compile(rb'"prompt_tokens":(\d+),"completion_tokens":(\d+)')
_CACHED = re.compile(rb'"cached_tokens":(\d+)')


class _Sticky(Stack):
    """Each worker's model has its name."""

    def settings_of(self, name: str) -> dict[str, object]:
        return {"model_name": name} if name.startswith("worker") else {}


def serve(variant: Variant, folder: Path, conversations: Sequence[Conversation]) -> tuple[list[Answered], int, int]:
    """All conversations on a stack of its own: their turns, and lanes' hits and misses."""
    kind = _Sticky if variant.is_sticky else Stack
    models = [f"worker{i}" for i in range(NUM_WORKERS)] if variant.is_sticky else ["simulated"]
    with kind(folder, num_workers=NUM_WORKERS, env=variant.settings()) as stack:
        return asyncio.run(_serve(stack, conversations, models))


async def _serve(
    stack: Stack, conversations: Sequence[Conversation], models: Sequence[str]
) -> tuple[list[Answered], int, int]:
    started = time.monotonic()
    held = [_hold(c, stack.port, models[c.number % len(models)], started) for c in conversations]
    turns = [answered for each in await asyncio.gather(*held) for answered in each]
    client: Any = connect(RedisSettings(redis_url=stack.valkey.url))
    there = [name.decode() for name in await client.hkeys(keys.MODELS)]
    counted = [await client.hmget(keys.counts(model), "lane_hits", "lane_misses") for model in there]
    await client.aclose()
    hits, misses = (sum(int(figure or 0) for figure in column) for column in zip(*counted, strict=True))
    return turns, hits, misses


async def _hold(conversation: Conversation, port: int, model: str, started: float) -> list[Answered]:
    await asyncio.sleep(max(0.0, started + conversation.begins_s - time.monotonic()))
    prompt, known, answers = text_of(conversation.system), 0, list[Answered]()
    for number, turn in enumerate(conversation.turns, 1):
        prompt += text_of(turn.question)
        text, answered = await _ask(port, model, prompt, number, turn.answer_tokens, known)
        prompt += text
        known = answered.prompt_tokens + turn.answer_tokens - 1
        answers.append(answered)
        await asyncio.sleep(turn.reading_s)
    return answers


async def _ask(port: int, model: str, prompt: str, *about: int) -> tuple[str, Answered]:
    """`about`: the turn's number, its answer's tokens, and how many tokens are known of its prompt."""
    number, max_tokens, known = about
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
    num_cached = int(cached.group(1)) if cached else 0
    answered = Answered(number, reply.first_s, int(usage.group(1)), num_cached, possible_tokens(known))
    return "".join(texts), answered
