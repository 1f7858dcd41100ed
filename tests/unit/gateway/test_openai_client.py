"""OpenAI's own client against a real server on a loopback port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest

from shared.errors import Overloaded
from shared.schemas import ChoiceEndFrame, EndFrame, ErrorInfo, Frame, Outcome, TokensFrame, Usage
from tests.unit.gateway.fakes import CARD, TOKENIZER, FakeDispatcher, answer, chat_body
from tests.unit.gateway.served import serving

MESSAGES: Any = [{"role": "user", "content": "hi"}]
TEXT = "Grüße, 日本 😀 and the rest"


def frames_of(text: str) -> list[list[Frame]]:
    """As a worker writes them: a frame a token, characters whole."""
    decoder = TOKENIZER.incremental()
    batches: list[list[Frame]] = [[TokensFrame(0, [i], decoder.push(i))] for i in TOKENIZER.encode(text)]
    usage = Usage(prompt_tokens=9, completion_tokens=len(batches))
    return [*batches, [ChoiceEndFrame(0, "stop"), EndFrame(Outcome.FINISHED, usage)]]


@asynccontextmanager
async def client_for(dispatcher: FakeDispatcher, **settings: Any) -> AsyncGenerator[openai.AsyncOpenAI]:
    async with (
        serving(dispatcher, **settings) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


async def test_stream_and_plain_say_the_same() -> None:
    async with client_for(FakeDispatcher(frames_of(TEXT))) as client:
        plain = await client.chat.completions.create(model=CARD.name, messages=MESSAGES)
        stream = await client.chat.completions.create(model=CARD.name, messages=MESSAGES, stream=True)
        chunks = [chunk async for chunk in stream]
    assert plain.choices[0].message.content == TEXT
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
    assert chunks[-1].choices[0].finish_reason == "stop" and all(chunk.usage is None for chunk in chunks)
    assert plain.usage is not None and plain.usage.prompt_tokens == 9


async def test_the_stream_helper_accumulates_a_message() -> None:
    async with client_for(FakeDispatcher(frames_of(TEXT))) as client:
        options: Any = {"include_usage": True}
        async with client.chat.completions.stream(model=CARD.name, messages=MESSAGES, stream_options=options) as stream:
            completion = await stream.get_final_completion()
    assert completion.choices[0].message.content == TEXT and completion.choices[0].message.role == "assistant"
    assert completion.usage is not None and completion.usage.total_tokens > 9


async def test_several_choices() -> None:
    batches = [[TokensFrame(i, [1], f"choice {i}")] for i in range(3)]
    ends: list[Frame] = [ChoiceEndFrame(i, "length") for i in range(3)]
    dispatcher = FakeDispatcher([*batches, [*ends, EndFrame(Outcome.FINISHED, Usage(5, 3))]])
    async with client_for(dispatcher) as client:
        plain = await client.chat.completions.create(model=CARD.name, messages=MESSAGES, n=3)
    assert [choice.message.content for choice in plain.choices] == ["choice 0", "choice 1", "choice 2"]


async def test_completions_and_models() -> None:
    async with client_for(FakeDispatcher(answer("a", "b"))) as client:
        plain = await client.completions.create(model=CARD.name, prompt="hi", seed=1)
        stream = await client.completions.create(model=CARD.name, prompt="hi", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == plain.choices[0].text == "ab"
        assert [model.id async for model in client.models.list()] == [CARD.name]
        assert (await client.models.retrieve(CARD.name)).id == CARD.name


async def test_mistakes_and_overload_are_the_clients_own_exceptions() -> None:
    dispatcher = FakeDispatcher(refusal=Overloaded("full", retry_after_s=2))
    async with client_for(dispatcher) as client:
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="none", messages=MESSAGES)
        with pytest.raises(openai.BadRequestError) as bad:
            await client.chat.completions.create(model=CARD.name, messages=MESSAGES, top_logprobs=2)
        with pytest.raises(openai.RateLimitError) as full:
            await client.chat.completions.create(model=CARD.name, messages=MESSAGES, stream=True)
    assert (missing.value.code, bad.value.param, full.value.code) == (
        "model_not_found", "top_logprobs", "rate_limit_exceeded"
    )  # fmt: skip
    assert bad.value.request_id


async def test_a_failure_in_mid_stream_is_raised() -> None:
    end = EndFrame(Outcome.FAILED, error=ErrorInfo("engine_error", "it broke"))
    async with client_for(FakeDispatcher([[TokensFrame(0, [1], "Hel")], [end]])) as client:
        stream = await client.chat.completions.create(model=CARD.name, messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="it broke"):
            [chunk async for chunk in stream]


async def test_a_journal_cut_short_is_raised_not_taken_for_an_answer() -> None:
    async with client_for(FakeDispatcher([[TokensFrame(0, [1], "Hel")]])) as client:
        stream = await client.chat.completions.create(model=CARD.name, messages=MESSAGES, stream=True)
        with pytest.raises((openai.APIConnectionError, httpx.RemoteProtocolError)):
            [chunk async for chunk in stream]


async def test_comments_while_queued_disturb_nobody_and_leaving_cancels() -> None:
    dispatcher = FakeDispatcher([[TokensFrame(0, [1], "Hel")]], hold=True)
    async with client_for(dispatcher, keepalive_s=0.01) as client:
        stream = await client.chat.completions.create(model=CARD.name, messages=MESSAGES, stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content == "Hel":
                break
        await asyncio.sleep(0.03)
        await stream.close()
        await dispatcher.was_left.wait()
    assert dispatcher.left == [dispatcher.requests[0].request_id]


async def test_a_client_that_does_not_read_is_dropped() -> None:
    endless: list[list[Frame]] = [[TokensFrame(0, [1], "x" * 60_000)] for _ in range(400)]
    dispatcher = FakeDispatcher(endless, hold=True)
    request = httpx.Request("POST", "http://gateway/v1/chat/completions", json=chat_body(stream=True))
    async with serving(dispatcher, stall_timeout_s=0.1) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port, limit=1024)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-length: {len(request.content)}\r\n"
        writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + request.content)
        await dispatcher.was_left.wait()
        received = await reader.read()
        writer.close()
    assert b"xxx" in received and not received.endswith(b"0\r\n\r\n")
