"""instructor: pydantic models by its modes."""

from __future__ import annotations

import asyncio
from typing import Any

import instructor
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from loadtest.clients.steps import expect, server, step

SERVER = server()
WANTED: dict[str, Any] = {
    "model": SERVER.real, "max_tokens": 60, "temperature": 0,
    "messages": [{"role": "user", "content": "Is Lisbon by the sea?"}],
}  # fmt: skip


class City(BaseModel):
    coastal: bool


def main() -> None:
    bare = OpenAI(base_url=SERVER.v1, api_key="unused")
    for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
        with step(f"{mode.name}: a model"):
            city = instructor.from_openai(bare, mode=mode).chat.completions.create(response_model=City, **WANTED)
            expect(isinstance(city, City), str(city))
    with step("TOOLS: a partial stream"):
        client = instructor.from_openai(bare, mode=instructor.Mode.TOOLS)
        parts = list(client.chat.completions.create_partial(response_model=City, **WANTED))
        expect(parts and parts[-1].coastal in (True, False), str(parts))
    with step("TOOLS: asynchronous"):
        waiting = instructor.from_openai(AsyncOpenAI(base_url=SERVER.v1, api_key="unused"))
        city = asyncio.run(waiting.chat.completions.create(response_model=City, **WANTED))
        expect(isinstance(city, City), str(city))


if __name__ == "__main__":
    main()
