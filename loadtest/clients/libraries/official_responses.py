"""OpenAI's own Python SDK on `/v1/responses`: text, tools, parse, streams, background and resuming."""

from __future__ import annotations

import json
import time
from typing import Any

from openai import AsyncOpenAI, NotFoundError, OpenAI
from pydantic import BaseModel

from loadtest.clients.steps import expect, server, step

SERVER = server()
QUESTION = "What is the capital of France? Answer in one sentence."
TOOL: Any = {
    "type": "function", "name": "weather", "strict": True,
    "parameters": {
        "type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"],
        "additionalProperties": False,
    },
}  # fmt: skip


class City(BaseModel):
    size: bool
    coastal: bool


def main(client: OpenAI) -> None:
    made(client)
    streamed(client)
    background(client)


def made(client: OpenAI) -> None:
    with step("responses: plain, found again, its input listed"):
        reply = client.responses.create(model=SERVER.real, input=QUESTION, temperature=0, max_output_tokens=24)
        expect("Paris" in reply.output_text and reply.status in ("completed", "incomplete"), reply.output_text)
        expect(client.responses.retrieve(reply.id).output_text == reply.output_text, "another text")
        expect([item.type for item in client.responses.input_items.list(reply.id)] == ["message"], "input items")
    with step("responses: a turn after it, by previous_response_id"):
        second = client.responses.create(
            model=SERVER.real, input="And of Italy?", previous_response_id=reply.id, max_output_tokens=12
        )
        expect(
            second.previous_response_id == reply.id and second.usage.input_tokens > reply.usage.input_tokens,
            "no history",
        )
    with step("responses: a required function call"):
        calls = client.responses.create(
            model=SERVER.real, input=QUESTION, tools=[TOOL], tool_choice="required", parallel_tool_calls=False,
            max_output_tokens=60,
        ).output  # fmt: skip
        expect([item.type for item in calls] == ["function_call"], str(calls))
        expect(json.loads(calls[0].arguments)["unit"] in ("C", "F"), calls[0].arguments)
    with step("responses: parse"):
        parsed = client.responses.parse(model=SERVER.real, input=QUESTION, text_format=City, max_output_tokens=60)
        expect(isinstance(parsed.output_parsed, City), "not parsed")
    with step("responses: deleted is not found"):
        client.responses.delete(second.id)
        try:
            client.responses.retrieve(second.id)
        except NotFoundError:
            pass
        else:
            raise AssertionError("still there")


def streamed(client: OpenAI) -> None:
    with step("responses: the stream helper follows every event"):
        with client.responses.stream(model=SERVER.real, input=QUESTION, temperature=0, max_output_tokens=24) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
        expect(kinds[0] == "response.created", str(kinds[:3]))
        expect("Paris" in final.output_text, final.output_text)


def background(client: OpenAI) -> None:
    with step("responses: background, polled, cancelled"):
        reply = client.responses.create(model=SERVER.simulated, input="Hello", background=True, max_output_tokens=8)
        give_up = time.monotonic() + 60
        while reply.status in ("queued", "in_progress") and time.monotonic() < give_up:
            time.sleep(0.1)
            reply = client.responses.retrieve(reply.id)
        expect(reply.status in ("completed", "incomplete") and reply.output_text, str(reply.status))
        long = client.responses.create(model=SERVER.simulated, input="Hello", background=True, max_output_tokens=4000)
        expect(client.responses.cancel(long.id).status in ("cancelled", "completed"), "not cancelled")
    with step("responses: a background stream is taken up after N events"):
        stream = client.responses.create(
            model=SERVER.simulated, input="Hello", background=True, stream=True, max_output_tokens=60
        )
        seen = []
        for event in stream:
            seen.append(event)
            if event.sequence_number == 5:
                break
        stream.close()
        later = list(client.responses.retrieve(seen[0].response.id, stream=True, starting_after=5))
        expect(later[0].sequence_number == 6 and later[-1].type in ("response.completed", "response.incomplete"),
               f"{later[0].sequence_number} {later[-1].type}")  # fmt: skip


async def asynchronous(client: AsyncOpenAI) -> None:
    with step("async: responses, plain and streamed"):
        reply = await client.responses.create(model=SERVER.simulated, input="Hello", max_output_tokens=8)
        stream = await client.responses.create(model=SERVER.simulated, input="Hello", max_output_tokens=8, stream=True)
        events = [event async for event in stream]
        expect(reply.output_text and events[-1].type in ("response.completed", "response.incomplete"), events[-1].type)
