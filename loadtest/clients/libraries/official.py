"""OpenAI's own Python SDK, any major: its whole chat and completion surface, sync and async."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from loadtest.clients.libraries import official_files, official_responses
from loadtest.clients.steps import expect, server, step

SERVER = server()
ASKED: Any = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"],
            "additionalProperties": False,
        },
    },
}  # fmt: skip
SHORT: dict[str, Any] = {"temperature": 0, "max_tokens": 24}


class City(BaseModel):
    size: bool
    coastal: bool


def chat(client: OpenAI) -> None:
    with step("chat: plain"):
        plain = client.chat.completions.create(model=SERVER.real, messages=ASKED, **SHORT)
        expect("Paris" in (plain.choices[0].message.content or ""), repr(plain.choices[0].message.content))
        expect(plain.usage and plain.usage.total_tokens > 20, "no usage")
        expect(plain._request_id, "no request id")
    with step("chat: a stream says the same, with usage"):
        chunks = list(
            client.chat.completions.create(
                model=SERVER.real, messages=ASKED, stream=True, stream_options={"include_usage": True}, **SHORT
            )
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        expect(text == plain.choices[0].message.content, f"{text!r}")
        expect(chunks[-1].usage == plain.usage or chunks[-1].usage.total_tokens == plain.usage.total_tokens, "usage")
    with step("chat: every option at once"):
        reply = client.chat.completions.create(
            model=SERVER.simulated, messages=ASKED, n=2, seed=3, stop=["zz", "yy"], top_p=0.9, temperature=0.8,
            presence_penalty=0.1, frequency_penalty=0.1, logit_bias={"300": -100}, logprobs=True, top_logprobs=2,
            max_completion_tokens=9, service_tier="default", store=False, metadata={"a": "b"}, user="u",
            parallel_tool_calls=True, reasoning_effort="low",
        )  # fmt: skip
        expect([choice.index for choice in reply.choices] == [0, 1], "choices")
        expect(len(reply.choices[0].logprobs.content[0].top_logprobs) == 2, "top_logprobs")
        expect(reply.service_tier == "default", repr(reply.service_tier))


def tools(client: OpenAI) -> None:
    wanted: dict[str, Any] = {"model": SERVER.real, "messages": ASKED, "tools": [TOOL], "max_tokens": 60}
    with step("tools: a required call, and its result back"):
        message = (
            client.chat.completions.create(tool_choice="required", parallel_tool_calls=False, **wanted)
            .choices[0]
            .message
        )
        call = message.tool_calls[0]
        expect(json.loads(call.function.arguments)["unit"] in ("C", "F"), call.function.arguments)
        turns = [*ASKED, message, {"role": "tool", "tool_call_id": call.id, "content": "20 degrees"}]
        answer = client.chat.completions.create(
            model=SERVER.real, messages=turns, tools=[TOOL], tool_choice="none", max_tokens=12
        )
        expect(answer.choices[0].message.content, "no answer")
    with step("tools: streamed deltas grow into the call"):
        grown, names = "", []
        for chunk in client.chat.completions.create(
            tool_choice="required", stream=True, parallel_tool_calls=False, **wanted
        ):
            for delta in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
                grown += delta.function.arguments or ""
                names += [delta.function.name] if delta.function.name else []
        expect(names == ["weather"] and json.loads(grown), f"{names} {grown}")


def structured(client: OpenAI) -> None:
    wanted: dict[str, Any] = {"model": SERVER.real, "messages": ASKED, "response_format": City, "max_tokens": 60}
    with step("parse: a pydantic model"):
        expect(isinstance(client.chat.completions.parse(**wanted).choices[0].message.parsed, City), "not parsed")
    with step("parse: from the stream helper"):
        with client.chat.completions.stream(**wanted) as stream:
            kinds = {event.type for event in stream}
            expect(isinstance(stream.get_final_completion().choices[0].message.parsed, City), "not parsed")
        expect({"chunk", "content.delta", "content.done"} <= kinds, str(kinds))
    with step("parse: what is cut raises LengthFinishReasonError"):
        try:
            client.chat.completions.parse(**wanted | {"max_tokens": 2})
        except openai.LengthFinishReasonError:
            pass
        else:
            raise AssertionError("nothing raised")


def completions(client: OpenAI) -> None:
    with step("completions: several prompts, n, logprobs"):
        reply = client.completions.create(
            model=SERVER.real, prompt=["One, two,", "Red, green,"], n=2, max_tokens=4, logprobs=2, seed=1
        )
        expect([choice.index for choice in reply.choices] == [0, 1, 2, 3], "indexes")
        expect(len(reply.choices[0].logprobs.tokens) == 4, str(reply.choices[0].logprobs))
    with step("completions: token ids, streamed"):
        chunks = list(client.completions.create(model=SERVER.real, prompt=[504, 2403], max_tokens=5, stream=True))
        expect("".join(chunk.choices[0].text for chunk in chunks if chunk.choices), "no text")
    with step("completions: echo with logprobs of the prompt"):
        choice = client.completions.create(
            model=SERVER.real, prompt="One, two, three", echo=True, logprobs=1, max_tokens=1, temperature=0
        ).choices[0]  # fmt: skip
        expect(choice.text.startswith("One, two, three"), choice.text)
        expect(choice.logprobs.token_logprobs[0] is None and choice.logprobs.token_logprobs[1] < 0, "logprobs")


def rest(client: OpenAI) -> None:
    with step("models: list and retrieve"):
        expect({SERVER.real, SERVER.simulated} <= {model.id for model in client.models.list()}, "not listed")
        expect(client.models.retrieve(SERVER.real).id == SERVER.real, "not found")
    with step("raw response: headers"):
        raw = client.chat.completions.with_raw_response.create(model=SERVER.simulated, messages=ASKED, max_tokens=2)
        expect(raw.headers["x-request-id"] and raw.parse().choices, "no id")
    with step("embeddings: the model pools nothing, and that is said"):
        refused(openai.BadRequestError, lambda: client.embeddings.create(model=SERVER.real, input="a"), "embedding")
    errors(client)


def errors(client: OpenAI) -> None:
    with step("errors: each its own exception"):
        chats = client.chat.completions
        refused(openai.NotFoundError, lambda: chats.create(model="gpt-4", messages=ASKED), "gpt-4")
        refused(
            openai.BadRequestError,
            lambda: chats.create(model=SERVER.simulated, messages=ASKED, temperature=9),
            "temperature",
        )
        too_long: Any = [{"role": "user", "content": "word " * 9000}]
        refused(
            openai.BadRequestError, lambda: chats.create(model=SERVER.real, messages=too_long), "maximum context length"
        )
    with step("errors: an over-long prompt has its code"):
        try:
            client.chat.completions.create(model=SERVER.real, messages=[{"role": "user", "content": "word " * 9000}])
        except openai.BadRequestError as error:
            expect(error.code == "context_length_exceeded" and error.param == "messages", f"{error.code} {error.param}")


def refused(kind: type[Exception], ask: Any, words: str) -> None:
    try:
        ask()
    except kind as error:
        expect(words in f"{error} {getattr(error, 'message', '')}", f"{error}")
    else:
        raise AssertionError(f"not refused: {words}")


async def asynchronous() -> None:
    async with AsyncOpenAI(base_url=SERVER.v1, api_key="unused") as client:
        with step("async: eight streams at once"):

            async def read(seed: int) -> str:
                stream = await client.chat.completions.create(
                    model=SERVER.simulated, messages=ASKED, stream=True, seed=seed, max_tokens=20
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

            texts = await asyncio.gather(*(read(seed) for seed in range(8)))
            expect(len(set(texts)) == 8, str(texts))
        with step("async: parse, models, a stream that is left"):
            parsed = await client.chat.completions.parse(
                model=SERVER.real, messages=ASKED, response_format=City, max_tokens=60
            )
            expect(isinstance(parsed.choices[0].message.parsed, City), "not parsed")
            expect([model.id async for model in client.models.list()], "none")
            stream = await client.chat.completions.create(model=SERVER.simulated, messages=ASKED, stream=True)
            await stream.close()
        await official_responses.asynchronous(client)


def main() -> None:
    with OpenAI(base_url=SERVER.v1, api_key="unused") as client:
        for part in (chat, tools, structured, completions, rest, official_responses.main, official_files.main):
            part(client)
    asyncio.run(asynchronous())


if __name__ == "__main__":
    main()
