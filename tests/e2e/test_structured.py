"""Structured output and logprobs through the official SDK: on the real model, and through a killed worker."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from typing import Any, Literal

import pytest
from openai import AsyncOpenAI, BadRequestError, LengthFinishReasonError
from pydantic import BaseModel, Field

from loadtest.stack import Stack
from tests.e2e.conftest import async_client_of, client_of
from tests.e2e.test_sdk import MODEL

pytestmark = pytest.mark.e2e


class City(BaseModel):
    name: str = Field(max_length=12)
    size: Literal["small", "large"]


class Cities(BaseModel):
    """Long enough to be killed half-way."""

    cities: list[City] = Field(min_length=4, max_length=4)


ASKED: list[Any] = [{"role": "user", "content": "Describe the capital of France as JSON."}]


@pytest.mark.timeout(180)  # reads its answer twice, and a busy machine is slow
def test_a_pydantic_model_is_parsed_from_a_plain_and_from_a_streamed_answer(real: Stack) -> None:
    wanted: dict[str, Any] = {"messages": ASKED, "response_format": City, "temperature": 0, "max_tokens": 60}
    with client_of(real) as client:
        plain = client.chat.completions.parse(model=MODEL, **wanted).choices[0]
        with client.chat.completions.stream(model=MODEL, **wanted) as stream:
            streamed = stream.get_final_completion().choices[0]
    assert isinstance(plain.message.parsed, City) and plain.finish_reason == "stop"
    assert (streamed.message.parsed, streamed.message.content) == (plain.message.parsed, plain.message.content)


def test_regex_and_choice_are_held(real: Stack) -> None:
    def say(**body: Any) -> str:
        reply = client.chat.completions.create(
            model=MODEL, messages=ASKED, temperature=0, max_tokens=20, extra_body=body
        )
        assert reply.choices[0].finish_reason == "stop"
        return reply.choices[0].message.content or ""

    with client_of(real) as client:
        assert re.fullmatch(r"[A-Z][a-z]{2,7}, \d{2}", say(regex=r"[A-Z][a-z]{2,7}, [0-9]{2}"))
        assert say(structured_outputs={"choice": ["Paris", "London"]}) in ("Paris", "London")


def test_logprobs_spell_the_answer_and_a_stream_tells_the_same(real: Stack) -> None:
    wanted: dict[str, Any] = {"messages": ASKED, "temperature": 0, "max_tokens": 6, "logprobs": True}
    with client_of(real) as client:
        plain = client.chat.completions.create(model=MODEL, top_logprobs=2, **wanted).choices[0]
        stream = client.chat.completions.create(model=MODEL, top_logprobs=2, stream=True, **wanted)
        chunks = [chunk.choices[0] for chunk in stream]
    assert plain.logprobs is not None and plain.logprobs.content is not None
    entries = plain.logprobs.content
    assert b"".join(bytes(entry.bytes or []) for entry in entries).decode() == plain.message.content
    assert all(entry.logprob == entry.top_logprobs[0].logprob for entry in entries)  # greedy
    streamed = [entry for chunk in chunks if chunk.logprobs for entry in chunk.logprobs.content or []]
    assert streamed == entries and len(entries) == 6


def test_parameters_reach_the_model(real: Stack) -> None:
    """A bias lifts the second likeliest token over the first."""
    wanted: dict[str, Any] = {"model": MODEL, "prompt": "One, two,", "temperature": 0, "max_tokens": 1}
    with client_of(real) as client:
        usual = client.completions.create(logprobs=2, **wanted).choices[0]
        assert usual.logprobs is not None and usual.logprobs.top_logprobs is not None
        assert usual.logprobs.tokens == [usual.text]
        other = next(token for token in usual.logprobs.top_logprobs[0] if token != usual.text)
        biased = client.completions.create(logit_bias={str(token_id_of(other)): 100}, **wanted).choices[0]
    assert biased.text == other


def token_id_of(text: str) -> int:
    from shared.text.tokenizer import Tokenizer
    from tests.model.packaged import smollm2_file
    from worker.model.checkpoints.gguf import GGUFCheckpoint

    (token_id,) = Tokenizer.from_blob(GGUFCheckpoint(smollm2_file()).tokenizer_blob).encode(text)
    return token_id


def test_each_of_n_streamed_answers_parses(simulated: Stack) -> None:
    wanted: dict[str, Any] = {"messages": ASKED, "response_format": City, "seed": 3, "max_tokens": 200, "n": 3}
    with client_of(simulated) as client, client.chat.completions.stream(model="simulated", **wanted) as stream:
        parsed = [choice.message.parsed for choice in stream.get_final_completion().choices]
    assert all(isinstance(city, City) for city in parsed) and len(parsed) == 3


def test_an_answer_cut_by_max_tokens_says_so(simulated: Stack) -> None:
    with client_of(simulated) as client, pytest.raises(LengthFinishReasonError) as cut:
        client.chat.completions.parse(model="simulated", messages=ASKED, response_format=City, max_tokens=3)
    assert cut.value.completion.choices[0].finish_reason == "length"


def test_a_schema_that_cannot_be_held_is_refused_with_the_keyword(simulated: Stack) -> None:
    schema = {"type": "array", "uniqueItems": True}
    shape: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with client_of(simulated) as client, pytest.raises(BadRequestError, match="uniqueItems") as refused:
        client.chat.completions.create(model="simulated", messages=ASKED, response_format=shape)
    assert (refused.value.param, refused.value.code) == ("response_format", "unsupported_parameter")


async def listing(client: AsyncOpenAI, seed: int, begun: asyncio.Event) -> tuple[str, list[Any]]:
    """Text and logprobs of a structured answer."""
    stream = await client.chat.completions.create(
        model="simulated", messages=ASKED, seed=seed, max_tokens=700, stream=True, logprobs=True, top_logprobs=1,
        response_format={"type": "json_schema", "json_schema": {"name": "c", "schema": Cities.model_json_schema()}},
    )  # fmt: skip
    text, told = "", list[Any]()
    async for chunk in stream:
        text += chunk.choices[0].delta.content or ""
        told += (chunk.choices[0].logprobs and chunk.choices[0].logprobs.content) or []
        if len(text) > 10:
            begun.set()
    return text, told


@pytest.mark.timeout(120)
async def test_a_killed_worker_changes_no_brace_and_no_logprob(breakable: Stack) -> None:
    async with async_client_of(breakable) as client:

        def four() -> tuple[list[asyncio.Task[tuple[str, list[Any]]]], list[asyncio.Event]]:
            begun = [asyncio.Event() for _ in range(4)]
            return [asyncio.create_task(listing(client, seed, begun[seed])) for seed in range(4)], begun

        undisturbed = await asyncio.gather(*four()[0])
        tasks, begun = four()
        await asyncio.gather(*(event.wait() for event in begun))
        breakable.workers[0].send_signal(signal.SIGKILL)
        assert await asyncio.gather(*tasks) == undisturbed
    for text, _ in undisturbed:
        assert len(Cities.model_validate(json.loads(text)).cities) == 4
