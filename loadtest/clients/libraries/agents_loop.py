"""OpenAI's Agents SDK: the loop of a tool call and an answer, on chat and on responses."""

from __future__ import annotations

import asyncio
from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)  # fmt: skip
from openai import AsyncOpenAI
from pydantic import BaseModel

from loadtest.clients.steps import expect, server, step

SERVER = server()
QUESTION = "How warm is it?"
CALLED: list[bool] = []


class City(BaseModel):
    coastal: bool


@function_tool
def weather(indoors: bool) -> str:
    """The weather now."""
    CALLED.append(indoors)
    return "20 degrees"


def agent(model: Any, **more: Any) -> Agent[None]:
    """The first turn must call; the next one is free (the SDK takes the choice back)."""
    settings = ModelSettings(temperature=0, max_tokens=60, parallel_tool_calls=False, tool_choice="required")
    return Agent(name="asked", model=model, model_settings=settings, tools=[weather], **more)


async def loops(name: str, model: Any) -> None:
    with step(f"{name}: a tool is called and the answer comes"):
        CALLED.clear()
        result = await Runner.run(agent(model), QUESTION, max_turns=4)
        expect(len(CALLED) >= 1 and result.final_output, f"{CALLED} {result.final_output}")
    with step(f"{name}: the same streamed"):
        CALLED.clear()
        run = Runner.run_streamed(agent(model), QUESTION, max_turns=4)
        kinds = {event.type async for event in run.stream_events()}
        expect(len(CALLED) >= 1 and run.final_output and "raw_response_event" in kinds, f"{CALLED} {kinds}")
    with step(f"{name}: typed output"):
        typed = Agent(
            name="typed", model=model, output_type=City, model_settings=ModelSettings(max_tokens=40, temperature=0)
        )
        expect(isinstance((await Runner.run(typed, QUESTION)).final_output, City), "no City")


async def main() -> None:
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=SERVER.v1, api_key="unused")
    await loops("chat", OpenAIChatCompletionsModel(SERVER.real, client))
    await loops("responses", OpenAIResponsesModel(SERVER.real, client))


if __name__ == "__main__":
    asyncio.run(main())
