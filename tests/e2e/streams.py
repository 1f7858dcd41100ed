"""Streams of a running gateway, raw: every line as it comes, so that frames can be counted and a client can leave.

`story` is one by the official client.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import orjson
from openai import AsyncOpenAI

CHAT: dict[str, Any] = {
    "model": "simulated",
    "messages": [{"role": "user", "content": "Tell me of the river."}],
    "temperature": 0,
    "seed": 7,
}


async def story(client: AsyncOpenAI, model: str, thing: str, started: asyncio.Event, *, max_tokens: int) -> str:
    """All of a greedy answer, by the official client; `started` is set with its first text."""
    stream = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": f"Tell me about the {thing}."}], temperature=0,
        max_tokens=max_tokens, stream=True,
    )  # fmt: skip
    parts: list[str] = []
    async for chunk in stream:
        parts.append(chunk.choices[0].delta.content or "")
        if parts[-1]:
            started.set()
    return "".join(parts)


class Stream:
    """One response; `data` are the payloads read so far, `ids` their numbers where they have one."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.lines = response.aiter_lines()
        self.data: list[str] = []
        self.ids: list[int] = []
        self.comments: list[str] = []

    @property
    def request_id(self) -> str:
        return self.response.headers["x-request-id"]

    @property
    def text(self) -> str:
        """What the choices said so far."""
        chunks = [orjson.loads(data) for data in self.data if data != "[DONE]"]
        return "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])

    async def read(self, count: int | None = None) -> Stream:
        """`count` data frames more, or all to the end."""
        wanted = None if count is None else len(self.data) + count
        while wanted is None or len(self.data) < wanted:
            line = await anext(self.lines, None)
            if line is None:
                break
            if line.startswith("data: "):
                self.data.append(line.removeprefix("data: "))
            elif line.startswith("id: "):
                self.ids.append(int(line.removeprefix("id: ")))
            elif line.startswith(":"):
                self.comments.append(line)
        return self


@contextlib.asynccontextmanager
async def _opened(method: str, url: str, **request: Any) -> AsyncGenerator[Stream]:
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client, client.stream(method, url, **request) as reply:
        if reply.status_code != 200:
            await reply.aread()
        reply.raise_for_status()
        yield Stream(reply)


def chat_stream(base_url: str, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    """A context manager of the Stream of a chat request."""
    body = CHAT | {"stream": True, "max_tokens": 60} | fields
    return _opened("POST", f"{base_url}/v1/chat/completions", json=body, headers=headers or {})


def events_of(base_url: str, request_id: str, headers: dict[str, str] | None = None, **query: Any) -> Any:
    """A context manager of the Stream that resumes a request."""
    return _opened("GET", f"{base_url}/v1/requests/{request_id}/events", params=query, headers=headers or {})


async def call(method: str, url: str, **request: Any) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        return await client.request(method, url, **request)
