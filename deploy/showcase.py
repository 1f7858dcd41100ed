"""The first answer: what a newcomer sees once the service is up. Asks its own endpoint like any client.

Never part of the service's health: whatever goes wrong here is one printed line.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import httpx

QUESTION = "In one sentence: what does a headrace do at a water mill?"
MAX_TOKENS = 48
TIMEOUT_S = 30.0

Write = Callable[[str], None]


@dataclass(frozen=True)
class Answer:
    """`first_token_s` counts from sending; a chunk is about a token."""

    first_token_s: float
    total_s: float
    num_chunks: int


def instructions(base_url: str, model: str, *, is_open: bool) -> list[str]:
    """A curl line and an OpenAI SDK snippet, as lines to print and to copy. `is_open`: it needs no API key."""
    key, header = ("unused", "") if is_open else ("YOUR_KEY", " -H 'authorization: Bearer YOUR_KEY'")
    body = json.dumps({"model": model, "stream": True, "messages": [{"role": "user", "content": QUESTION}]})
    return [
        "Try it:",
        f"  curl -N {base_url}/v1/chat/completions -H 'content-type: application/json'{header} \\",
        f"    -d '{body}'",
        "",
        "Or with the OpenAI SDK:",
        "  from openai import OpenAI",
        f'  client = OpenAI(base_url="{base_url}/v1", api_key="{key}")',
        f'  reply = client.chat.completions.create(model="{model}", messages=[{{"role": "user", "content": "Hello"}}])',
        "  print(reply.choices[0].message.content)",
    ]


async def first_model(client: httpx.AsyncClient) -> str | None:
    """The name of a model with a live worker, or None when there is none (or the endpoint fails).

    Not from `/v1/models`: that also lists what earlier runs served.
    """
    try:
        reply = await client.get("/health/ready")
        workers: dict[str, int] = reply.raise_for_status().json()["workers"]
    except (httpx.HTTPError, ValueError, KeyError):
        return None
    return next((name for name, number in workers.items() if number), None)


async def is_open(client: httpx.AsyncClient) -> bool:
    """Whether it serves who sends no API key."""
    try:
        return (await client.get("/v1/models")).status_code != 401
    except httpx.HTTPError:
        return True


async def stream_answer(client: httpx.AsyncClient, model: str, write: Write) -> Answer:
    """Stream one short completion to `write`, piece by piece. Raises httpx.HTTPError or ValueError."""
    body = {
        "model": model,
        "stream": True,
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "messages": [{"role": "user", "content": QUESTION}],
    }
    started = time.monotonic()
    first_s, count = 0.0, 0
    async with client.stream("POST", "/v1/chat/completions", json=body, timeout=TIMEOUT_S) as reply:
        if reply.is_error:
            await reply.aread()
            raise ValueError(f"HTTP {reply.status_code}: {reply.text[:500]}")
        async for text in _texts(reply):
            count += 1
            first_s = first_s or time.monotonic() - started
            write(text)
    return Answer(first_token_s=first_s, total_s=time.monotonic() - started, num_chunks=count)


async def _texts(reply: httpx.Response) -> AsyncIterator[str]:
    async for line in reply.aiter_lines():
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        event: dict[str, Any] = json.loads(line.removeprefix("data: "))
        if "error" in event:
            raise ValueError(str(event["error"].get("message", event["error"])))
        for choice in event.get("choices", []):
            text = choice.get("delta", {}).get("content")
            if text:
                yield str(text)
