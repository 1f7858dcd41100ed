"""The official SDK over every endpoint and option that has no page of its own here, on the real model."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from openai import BadRequestError, OpenAI
from pydantic import BaseModel

from loadtest.stack import Stack
from tests.e2e.conftest import async_client_of, client_of
from tests.e2e.test_sdk import MODEL, QUESTION

pytestmark = pytest.mark.e2e
REPEAT: list[Any] = [{"role": "user", "content": "Write a poem in which the word rain comes often."}]


def greedy(**options: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 12, **options}


def counting(**options: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "One, two, three,", "temperature": 0, "max_tokens": 6, **options}


def text_of(client: OpenAI, **options: Any) -> str:
    return client.chat.completions.create(**greedy(**options)).choices[0].message.content or ""


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0, "extra_body": {"top_k": 1}},
        {"temperature": 1.0, "top_p": 0.0},
        {"temperature": 1.0, "extra_body": {"min_p": 1.0}},
        {"max_tokens": None, "max_completion_tokens": 12},
        {"logit_bias": {}, "presence_penalty": 0, "frequency_penalty": 0, "stop": None, "n": 1, "logprobs": False},
        {"service_tier": "flex", "store": False, "metadata": {"a": "b"}, "user": "u", "reasoning_effort": "low"},
        {"prompt_cache_key": "k", "safety_identifier": "s", "verbosity": "low", "prediction": None, "seed": 7},
        {"extra_body": {"deadline_ms": 60_000}, "extra_headers": {"Idempotency-Key": "one"}, "timeout": 50},
    ],
    ids=lambda options: "+".join(options),
)
def test_options_that_leave_an_answer_as_it_is(real: Stack, options: dict[str, Any]) -> None:
    with client_of(real) as client:
        assert text_of(client, **options) == text_of(client) != ""


@pytest.mark.parametrize(
    "options",
    [
        {"frequency_penalty": 2.0},
        {"presence_penalty": 2.0},
        {"extra_body": {"repetition_penalty": 2.0}},
        {"logit_bias": {"504": 100}},
        {"extra_body": {"regex": "[0-9]{3}"}},
        {"extra_body": {"choice": ["Oslo", "Rome"]}},
        {"response_format": {"type": "json_object"}},
        {"messages": [{"role": "developer", "content": "You are a pirate."}, *REPEAT]},
    ],
    ids=lambda options: "+".join(options),
)
def test_options_that_change_an_answer(real: Stack, options: dict[str, Any]) -> None:
    with client_of(real) as client:
        usual: dict[str, Any] = {"messages": REPEAT, "max_tokens": 30}
        assert text_of(client, **usual | options) != text_of(client, **usual)


@pytest.mark.parametrize("options", [{"ignore_eos": True}, {"min_tokens": 30}], ids=str)
def test_options_that_make_an_answer_longer(real: Stack, options: dict[str, Any]) -> None:
    with client_of(real) as client:
        usual, longer = (
            client.chat.completions.create(**greedy(max_tokens=30, extra_body=body)).usage for body in ({}, options)
        )
    assert usual and longer and usual.completion_tokens < longer.completion_tokens == 30


def test_stops_are_strings_or_tokens(real: Stack) -> None:
    with client_of(real) as client:
        whole = client.completions.create(**counting(), extra_body={"return_token_ids": True}).choices[0]
        third = (whole.model_extra or {})["token_ids"][2]
        cut = client.completions.create(**counting(), extra_body={"stop_token_ids": [third]}).choices[0]
        by_text = client.completions.create(**counting(), stop=["no such text", whole.text[4:6]]).choices[0]
    assert whole.text.startswith(cut.text) and len(cut.text) < len(whole.text) and cut.finish_reason == "stop"
    assert by_text.text == whole.text[: whole.text.index(whole.text[4:6])]


def test_a_completion_is_the_same_streamed_and_of_token_ids(real: Stack) -> None:
    with client_of(real) as client:
        plain = client.completions.create(**counting(), logprobs=2, extra_body={"return_token_ids": True})
        stream = client.completions.create(
            **counting(), logprobs=2, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
        ids = (plain.model_extra or {})["prompt_token_ids"]
        again = client.completions.create(**counting(prompt=ids))
    whole = plain.choices[0]
    assert whole.text == "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == again.choices[0].text
    assert whole.logprobs and whole.logprobs.tokens and "".join(whole.logprobs.tokens) == whole.text
    assert chunks[-1].usage and plain.usage and chunks[-1].usage.total_tokens == plain.usage.total_tokens


def test_usage_grows_with_a_stream_that_asks_for_it(real: Stack) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    with client_of(real) as client:
        chunks = list(client.chat.completions.create(**greedy(), stream=True, stream_options=options))
    counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage]
    assert counts == sorted(counts) and len(counts) == counts[-1] + 2


def test_raw_and_streamed_responses_have_their_headers(real: Stack) -> None:
    with client_of(real) as client:
        raw = client.chat.completions.with_raw_response.create(**greedy())
        with client.chat.completions.with_streaming_response.create(**greedy(), stream=True) as streamed:
            lines = [line for line in streamed.iter_lines() if line.startswith("data: ")]
    assert raw.parse().id == f"chatcmpl-{raw.headers['x-request-id']}" and raw.headers["x-headrace-worker"]
    assert streamed.headers["content-type"].startswith("text/event-stream") and lines[-1] == "data: [DONE]"


def test_embeddings_are_refused_by_a_model_that_writes(real: Stack) -> None:
    with client_of(real) as client, pytest.raises(BadRequestError, match="makes no embedding") as refused:
        client.embeddings.create(model=MODEL, input="a")
    assert (refused.value.param, refused.value.code) == ("model", "unsupported_parameter")


class City(BaseModel):
    coastal: bool


async def test_the_async_client_does_all_of_it_at_once(real: Stack) -> None:
    async with async_client_of(real) as client:
        chat, parsed, completion, response, models = await asyncio.gather(
            client.chat.completions.create(**greedy()),
            client.chat.completions.parse(**greedy(max_tokens=40), response_format=City),
            client.completions.create(**counting()),
            client.responses.parse(model=MODEL, input="Is Rome by the sea?", text_format=City, max_output_tokens=40),
            client.models.retrieve(MODEL),
        )
    assert chat.choices[0].message.content and completion.choices[0].text and models.id == MODEL
    assert isinstance(parsed.choices[0].message.parsed, City) and isinstance(response.output_parsed, City)


async def test_an_async_stream_that_is_left_frees_its_place(real: Stack) -> None:
    async with async_client_of(real) as client:
        stream = await client.chat.completions.create(**greedy(max_tokens=4000), stream=True)
        request_id = stream.response.headers["x-request-id"]
        await anext(aiter(stream))
        await stream.close()
        status = ""
        while status not in ("cancelled", "completed"):
            told = await client.get(f"/requests/{request_id}", cast_to=dict[str, Any])
            status = told["status"]
    assert status == "cancelled"


@pytest.mark.timeout(120)
async def test_a_batch_goes_from_upload_to_results(real: Stack) -> None:
    line: dict[str, Any] = {"method": "POST", "url": "/v1/chat/completions", "body": greedy()}
    text = "".join(json.dumps(line | {"custom_id": name}) + "\n" for name in "abc")
    async with async_client_of(real) as client:
        file = await client.files.create(file=("lines.jsonl", text.encode()), purpose="batch")
        assert (await client.files.content(file.id)).text == text
        batch = await client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        while batch.status not in ("completed", "failed", "expired"):
            await asyncio.sleep(0.1)
            batch = await client.batches.retrieve(batch.id)
        assert batch.output_file_id is not None and batch.request_counts is not None
        results = [json.loads(done) for done in (await client.files.content(batch.output_file_id)).text.splitlines()]
        plain = await client.chat.completions.create(**greedy())
    assert {done["custom_id"] for done in results} == set("abc") and batch.request_counts.completed == 3
    answers = {done["response"]["body"]["choices"][0]["message"]["content"] for done in results}
    assert answers == {plain.choices[0].message.content}
