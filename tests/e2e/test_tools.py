# pyright: reportArgumentType=false
"""Calls of functions through the official SDK: forced on the real model, streamed, resumed, and through a kill."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any, Literal

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel, Field

from loadtest.stack import Stack
from tests.e2e.conftest import async_client_of, client_of
from tests.e2e.test_sdk import MODEL

pytestmark = pytest.mark.e2e


class Weather(BaseModel):
    """The weather of a city."""

    city: str = Field(max_length=12)
    unit: Literal["celsius", "fahrenheit"]


class Sum(BaseModel):
    """The sum of two numbers."""

    a: int = Field(ge=0, le=99)
    b: int = Field(ge=0, le=99)


TOOLS: Any = [openai.pydantic_function_tool(Weather), openai.pydantic_function_tool(Sum)]
ASKED: list[Any] = [{"role": "user", "content": "How warm is it in Oslo?"}]
NAMED: Any = {"type": "function", "function": {"name": "Weather"}}


@pytest.mark.timeout(180)  # reads its answer twice, and a busy machine is slow
def test_a_forced_call_is_parsed_by_its_schema_plain_and_streamed(real: Stack) -> None:
    wanted: dict[str, Any] = {"messages": ASKED, "tools": TOOLS, "tool_choice": NAMED, "temperature": 0}
    with client_of(real) as client:
        plain = client.chat.completions.parse(model=MODEL, max_tokens=80, **wanted).choices[0]
        with client.chat.completions.stream(model=MODEL, max_tokens=80, **wanted) as stream:
            grown = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
            streamed = stream.get_final_completion().choices[0]
    assert plain.message.tool_calls and streamed.message.tool_calls
    call = plain.message.tool_calls[0]
    assert isinstance(call.function.parsed_arguments, Weather) and plain.message.content is None
    assert plain.finish_reason == streamed.finish_reason == "stop"  # as at OpenAI, where the client named the function
    assert streamed.message.tool_calls[0].function.parsed_arguments == call.function.parsed_arguments
    assert "".join(event.arguments_delta for event in grown) == call.function.arguments and len(grown) > 1


@pytest.mark.timeout(180)
def test_the_result_of_a_required_call_goes_back_and_is_answered(real: Stack) -> None:
    with client_of(real) as client:
        first = client.chat.completions.create(
            model=MODEL, messages=ASKED, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=80
        ).choices[0]
        assert first.finish_reason == "tool_calls" and first.message.tool_calls
        (call,) = first.message.tool_calls
        assert call.type == "function"
        turns = [*ASKED, first.message, {"role": "tool", "tool_call_id": call.id, "content": "-3 degrees"}]
        second = client.chat.completions.create(model=MODEL, messages=turns, tools=TOOLS, max_tokens=20).choices[0]
    {"Weather": Weather, "Sum": Sum}[call.function.name].model_validate_json(call.function.arguments)
    assert second.message.content or second.message.tool_calls


def test_choices_of_a_required_call_differ_in_their_ids(simulated: Stack) -> None:
    with client_of(simulated) as client:
        reply = client.chat.completions.create(
            model="simulated", messages=ASKED, tools=TOOLS, tool_choice="required", n=3, seed=1, max_tokens=400,
            logprobs=True,
        )  # fmt: skip
    calls = [call for choice in reply.choices for call in choice.message.tool_calls or []]
    assert len({call.id for call in calls}) == len(calls) >= 3
    assert {choice.finish_reason for choice in reply.choices} == {"tool_calls"}
    assert all(choice.logprobs and choice.logprobs.content for choice in reply.choices)


def test_a_stop_string_inside_a_call_ends_it_there(simulated: Stack) -> None:
    wanted: dict[str, Any] = {"messages": ASKED, "tools": TOOLS, "tool_choice": NAMED, "seed": 1, "max_tokens": 400}
    with client_of(simulated) as client:
        cut = client.chat.completions.create(model="simulated", stop=['"unit"'], **wanted).choices[0].message
    assert cut.tool_calls and cut.tool_calls[0].type == "function"
    assert '"city"' in cut.tool_calls[0].function.arguments
    assert '"unit"' not in cut.tool_calls[0].function.arguments


def test_a_resumed_stream_has_the_same_calls(simulated: Stack) -> None:
    body = {
        "model": "simulated",
        "messages": ASKED,
        "tools": TOOLS,
        "tool_choice": "required",
        "stream": True,
        "seed": 4,
    }
    with httpx.Client(base_url=simulated.base_url, timeout=60) as client:
        reply = client.post("/v1/chat/completions", json=body, headers={"X-Headrace-Detach": "true"})
        again = client.get(f"/v1/requests/{reply.headers['x-request-id']}/events?starting_after=2")
    frames, later = (
        [line for line in text.splitlines() if line.startswith("data: ")] for text in (reply.text, again.text)
    )
    assert later == frames[2:] and '"tool_calls"' in reply.text and len(frames) > 5


async def called(client: AsyncOpenAI, seed: int, begun: asyncio.Event) -> Any:
    async with client.chat.completions.stream(
        model="simulated", messages=ASKED, tools=TOOLS, tool_choice="required", seed=seed, max_tokens=700
    ) as stream:
        async for event in stream:
            if event.type == "tool_calls.function.arguments.delta":
                begun.set()
        choice = (await stream.get_final_completion()).choices[0]
    return choice.finish_reason, [(call.function.name, json.loads(call.function.arguments))
                                  for call in choice.message.tool_calls or []]  # fmt: skip


@pytest.mark.timeout(120)
async def test_a_killed_worker_changes_no_call(breakable: Stack) -> None:
    async with async_client_of(breakable) as client:

        def four() -> tuple[list[asyncio.Task[Any]], list[asyncio.Event]]:
            begun = [asyncio.Event() for _ in range(4)]
            return [asyncio.create_task(called(client, seed, begun[seed])) for seed in range(4)], begun

        undisturbed = await asyncio.gather(*four()[0])
        tasks, begun = four()
        await asyncio.gather(*(event.wait() for event in begun))
        breakable.workers[0].send_signal(signal.SIGKILL)
        assert await asyncio.gather(*tasks) == undisturbed
    assert all(reason == "tool_calls" and calls for reason, calls in undisturbed)
