"""Prompts repeated with their logprobs, by the official SDK: on the real model, and through a worker's death."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import httpx
import pytest
import redis.asyncio
from openai import AsyncOpenAI, BadRequestError, OpenAI

from loadtest.stack import Stack
from tests.e2e.conftest import async_client_of, client_of
from tests.e2e.test_sdk import MODEL

pytestmark = pytest.mark.e2e
TEXT = "The capital of France is Paris, and the capital of Italy is Rome."


def echoed(client: OpenAI, prompt: Any = TEXT, **options: Any) -> Any:
    wanted: dict[str, Any] = {"max_tokens": 1, "logprobs": 1, "temperature": 0, "seed": 1234} | options
    return client.completions.create(model=MODEL, prompt=prompt, echo=True, **wanted).choices[0]


def test_logprobs_of_a_prompt_are_those_of_the_same_tokens_forced(real: Stack) -> None:
    with client_of(real) as client:
        ids: list[int] = httpx.post(f"{real.base_url}/tokenize", json={"prompt": TEXT}).json()["tokens"]
        told = echoed(client, ids).logprobs
        assert len(told.tokens) == len(ids) + 1 and told.token_logprobs[0] is told.top_logprobs[0] is None
        for position in range(1, len(ids)):
            forced = client.completions.create(
                model=MODEL, prompt=ids[:position], max_tokens=1, logprobs=1, logit_bias={str(ids[position]): 100}
            ).choices[0].logprobs  # fmt: skip
            assert forced and forced.tokens and forced.token_logprobs
            assert told.tokens[position] == forced.tokens[0]
            assert told.token_logprobs[position] == pytest.approx(forced.token_logprobs[0], abs=1e-5)


def test_text_tokens_and_offsets_spell_the_prompt_and_the_answer_plain_as_streamed(real: Stack) -> None:
    with client_of(real) as client:
        choice = echoed(client, max_tokens=4)
        assert choice.text.startswith(TEXT) and "".join(choice.logprobs.tokens) == choice.text
        for token, offset in zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True):
            assert choice.text[offset : offset + len(token)] == token
        chunks = [chunk.choices[0] for chunk in client.completions.create(
            model=MODEL, prompt=TEXT, echo=True, logprobs=1, max_tokens=4, temperature=0, stream=True
        )]  # fmt: skip
        assert "".join(chunk.text for chunk in chunks) == choice.text
        streamed = [value for chunk in chunks if chunk.logprobs for value in chunk.logprobs.token_logprobs or ()]
        assert streamed == choice.logprobs.token_logprobs


def test_of_no_tokens_the_prompt_alone_is_told_and_counted(real: Stack) -> None:
    with client_of(real) as client:
        reply = client.completions.create(model=MODEL, prompt=TEXT, echo=True, logprobs=0, max_tokens=0)
        assert (reply.choices[0].text, reply.choices[0].finish_reason) == (TEXT, "length")
        assert reply.usage and reply.usage.completion_tokens == 0
        assert client.completions.create(model=MODEL, prompt=TEXT, echo=True, max_tokens=0).choices[0].text == TEXT
        with pytest.raises(BadRequestError, match="max_tokens"):
            client.completions.create(model=MODEL, prompt=TEXT, max_tokens=0)


async def scored(client: AsyncOpenAI, number: int) -> tuple[str, list[Any]]:
    reply = await client.completions.create(
        model="simulated", prompt=[5 + number] * 1500, echo=True, logprobs=1, max_tokens=5, n=2, seed=3
    )
    return str([choice.text for choice in reply.choices]), [choice.logprobs for choice in reply.choices]


@pytest.mark.timeout(120)
async def test_a_worker_killed_while_prompts_are_scored_changes_no_logprob(breakable: Stack) -> None:
    """A prompt takes 24 steps and more."""
    async with async_client_of(breakable) as client:
        undisturbed = await asyncio.gather(*(scored(client, number) for number in range(4)))
        async with redis.asyncio.from_url(breakable.valkey.url) as server, server.pubsub() as told:
            await told.psubscribe("hr:out:*")
            tasks = [asyncio.create_task(scored(client, number)) for number in range(4)]
            await anext(
                message
                async for message in told.listen()
                if message["type"] == "pmessage" and b'[\\"p\\"' in message["data"]
            )
        breakable.workers[0].send_signal(signal.SIGKILL)
        assert await asyncio.gather(*tasks) == undisturbed
    assert len(undisturbed[0][1][1].token_logprobs) == 1505
