"""pydantic-ai's agents, on chat and on responses."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, ModelHTTPError, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from loadtest.clients.steps import expect, server, step

SERVER = server()
QUESTION = "What is the capital of France? Answer in one sentence."
SHORT = ModelSettings(temperature=0, max_tokens=60)
PROVIDER = OpenAIProvider(base_url=SERVER.v1, api_key="unused")


class City(BaseModel):
    coastal: bool


def agent(kind: Any = OpenAIChatModel, **settings: Any) -> Agent[None, Any]:
    return Agent(kind(SERVER.real, provider=PROVIDER), model_settings=SHORT, **settings)


async def streamed(asked: Agent[None, Any]) -> str:
    async with asked.run_stream(QUESTION) as result:
        return "".join([part async for part in result.stream_text(delta=True)])


def looping() -> Agent[None, Any]:
    """Its typed output is a call the model is forced to make; its other tool is offered beside it."""
    made = agent(output_type=ToolOutput(City), retries=3)

    @made.tool_plain
    def weather() -> str:
        """The weather now."""
        return "20 degrees"

    return made


def main() -> None:
    with step("chat: text, and a stream that says the same"):
        text = agent().run_sync(QUESTION).output
        expect("Paris" in text and asyncio.run(streamed(agent())) == text, text)
    with step("chat: typed output by JSON schema"):
        expect(isinstance(agent(output_type=NativeOutput(City)).run_sync(QUESTION).output, City), "no City")
    with step("chat: typed output by a tool"):
        expect(isinstance(agent(output_type=ToolOutput(City)).run_sync(QUESTION).output, City), "no City")
    with step("chat: a tool beside the typed output"):
        expect(isinstance(looping().run_sync(QUESTION).output, City), "no City")
    with step("errors: status and words"):
        try:
            agent().run_sync("word " * 9000)
        except ModelHTTPError as error:
            expect(error.status_code == 400 and "maximum context length" in str(error), str(error))
        else:
            raise AssertionError("nothing raised")
    with step("responses: text and typed output"):
        expect("Paris" in agent(OpenAIResponsesModel).run_sync(QUESTION).output, "no Paris")
        typed = agent(OpenAIResponsesModel, output_type=NativeOutput(City)).run_sync(QUESTION).output
        expect(isinstance(typed, City), str(typed))
    with step("responses: streamed"):
        expect(asyncio.run(streamed(agent(OpenAIResponsesModel))), "no text")


if __name__ == "__main__":
    main()
