"""Several prompts in one completion, by the official SDK over real processes: one answer, and all of them or none."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson
import pytest
from openai import APIStatusError, AsyncOpenAI, RateLimitError

from loadtest.stack import Stack
from shared.access.entries import KeyEntry, entry_as_toml, sha256_of
from tests.e2e.books import books_of, settled_books
from tests.e2e.conftest import SIMULATED, async_client_of, client_of
from tests.e2e.streams import Stream, call, events_of

pytestmark = pytest.mark.e2e
PROMPTS = ["Tell me of the river.", "And of the sea?", "And the rain?"]
ASKED: dict[str, Any] = {"model": "simulated", "seed": 7, "max_tokens": 40, "extra_body": {"ignore_eos": True}}
HEADERS: list[dict[str, str]] = [{}, {"X-Headrace-Detach": "true"}, {"Idempotency-Key": "refused"}]
KEYS = [KeyEntry(sha256=sha256_of(name), name=name, requests_per_min=3) for name in ("few0", "few1", "few2")]


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("prompts")
    (directory / "keys.toml").write_text("\n".join(map(entry_as_toml, KEYS)))
    with Stack(directory, env={**SIMULATED, "keys_file": directory / "keys.toml"}) as stack:
        yield stack


@asynccontextmanager
async def streaming(stack: Stack, headers: dict[str, str] | None = None, **fields: Any) -> AsyncGenerator[Stream]:
    asked = {"model": "simulated", "seed": 7, "max_tokens": 4000, "ignore_eos": True, "stream": True, "prompt": PROMPTS}
    async with (
        httpx.AsyncClient(trust_env=False, timeout=30) as client,
        client.stream("POST", f"{stack.base_url}/v1/completions", json=asked | fields, headers=headers) as reply,
    ):
        yield Stream(reply)


def texts_of(data: list[str]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for choice in (choice for line in data if line != "[DONE]" for choice in orjson.loads(line)["choices"]):
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return texts


async def states_of(stack: Stack, request_id: str) -> list[str]:
    ids = [request_id, *(f"{request_id}-{index}" for index in range(1, len(PROMPTS)))]
    replies = [await call("GET", f"{stack.base_url}/v1/requests/{one}") for one in ids]
    return [reply.json()["status"] for reply in replies]


def test_each_prompt_is_answered_as_if_alone_plain_as_streamed(simulated: Stack) -> None:
    options: dict[str, Any] = ASKED | {"n": 2, "echo": True, "logprobs": 1}
    with client_of(simulated) as client:
        alone = [client.completions.create(prompt=prompt, **options) for prompt in PROMPTS]
        plain = client.completions.create(prompt=PROMPTS, **options)
        chunks = list(
            client.completions.create(prompt=PROMPTS, stream=True, stream_options={"include_usage": True}, **options)
        )
    expected = [choice for one in alone for choice in one.choices]
    assert [choice.index for choice in plain.choices] == list(range(6))
    assert [(c.text, c.logprobs, c.finish_reason) for c in plain.choices] == [
        (c.text, c.logprobs, c.finish_reason) for c in expected
    ]
    told = [choice for chunk in chunks for choice in chunk.choices]
    for whole in plain.choices:
        assert "".join(choice.text for choice in told if choice.index == whole.index) == whole.text
    assert len({chunk.id for chunk in chunks}) == 1 and [c.usage for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    for usage in (plain.usage, chunks[-1].usage):
        assert usage and usage.prompt_tokens == sum(one.usage.prompt_tokens for one in alone if one.usage)
        assert usage.completion_tokens == 6 * 40


def test_lists_of_token_ids_are_prompts(simulated: Stack) -> None:
    with client_of(simulated) as client:
        one = client.completions.create(prompt=[11, 12], **ASKED).choices[0].text
        assert client.completions.create(prompt=[[11, 12]] * 2, **ASKED).choices[1].text == one


@pytest.mark.parametrize("headers", HEADERS, ids=str)
async def test_a_refused_prompt_takes_the_others_with_it_and_nothing_is_charged(
    limited: Stack, headers: dict[str, str]
) -> None:
    """Of three a minute one is used: the third prompt is refused, after two were in the queue."""
    name = f"few{HEADERS.index(headers)}"
    async with AsyncOpenAI(base_url=f"{limited.base_url}/v1", api_key=name, max_retries=0) as client:
        before = (await books_of(limited)).sums["cancelled"]
        await client.completions.create(prompt="a", **ASKED)
        with pytest.raises(RateLimitError):
            await client.completions.create(prompt=PROMPTS, extra_headers=headers, stream=True, **ASKED)
        books = await books_of(limited)
        assert (books.undone, books.sums["cancelled"], books.problems) == (set(), before + 2, [])
        assert len((await client.completions.create(prompt=PROMPTS[:2], **ASKED)).choices) == 2


async def test_a_client_that_leaves_ends_all(simulated: Stack) -> None:
    async with streaming(simulated) as stream:
        await stream.read(9)
    await settled_books(simulated)
    assert await states_of(simulated, stream.request_id) == ["cancelled"] * 3


async def test_the_error_of_one_ends_the_stream_and_the_others(simulated: Stack) -> None:
    """Also of those that would go on without their client."""
    async with streaming(simulated, {"Idempotency-Key": "one-cancelled"}) as stream:
        await stream.read(9)
        await call("POST", f"{simulated.base_url}/v1/requests/{stream.request_id}-1/cancel")
        *_, error, done = (await stream.read()).data
    assert (orjson.loads(error)["error"]["code"], done) == ("request_cancelled", "[DONE]")
    assert await states_of(simulated, stream.request_id) == ["cancelled"] * 3


async def test_a_plain_answer_fails_with_the_error_of_one(simulated: Stack) -> None:
    wanted: dict[str, Any] = ASKED | {"max_tokens": 4000, "extra_body": {"deadline_ms": 300}}
    async with async_client_of(simulated) as client:
        with pytest.raises(APIStatusError, match="deadline"):
            await client.completions.create(prompt=PROMPTS, **wanted)
    assert (await settled_books(simulated)).problems == []


async def test_a_prompt_is_followed_by_its_own_id(simulated: Stack) -> None:
    async with streaming(simulated, max_tokens=60) as stream:
        await stream.read(5)
        async with events_of(simulated.base_url, f"cmpl-{stream.request_id}-2", starting_after=3) as part:
            await part.read()
        await stream.read()
    assert part.ids[0] == 4 and set(texts_of(part.data)) == {2}
    assert texts_of(stream.data)[2].endswith(texts_of(part.data)[2])


async def test_a_repeat_with_the_same_key_joins_each_prompts_run(simulated: Stack) -> None:
    key = {"Idempotency-Key": "prompts"}
    before = (await settled_books(simulated)).sums["finished"]
    async with streaming(simulated, key, max_tokens=60) as first:
        await first.read(5)
        async with streaming(simulated, key, max_tokens=60) as second:
            await asyncio.gather(first.read(), second.read())
    async with streaming(simulated, key, max_tokens=60) as third:
        await third.read()
    assert texts_of(first.data) == texts_of(second.data) == texts_of(third.data)
    assert first.request_id == second.request_id == third.request_id and first.data.count("[DONE]") == 1
    assert (await settled_books(simulated)).sums["finished"] == before + 3


async def test_a_worker_killed_in_the_middle_changes_no_text(breakable: Stack) -> None:
    async with streaming(breakable, max_tokens=200) as stream:
        undisturbed = texts_of((await stream.read()).data)
    async with streaming(breakable, max_tokens=200) as stream:
        await stream.read(60)
        breakable.workers[0].send_signal(signal.SIGKILL)
        await stream.read()
    assert texts_of(stream.data) == undisturbed and stream.data.count("[DONE]") == 1
    assert (await settled_books(breakable)).problems == []


def test_a_line_of_a_batch_may_have_several(simulated: Stack) -> None:
    body = {"model": "simulated", "prompt": PROMPTS, "max_tokens": 5, "ignore_eos": True}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    with client_of(simulated) as client:
        file = client.files.create(file=("lines.jsonl", orjson.dumps(line)), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
        while batch.status not in ("completed", "failed", "expired"):
            batch = client.batches.retrieve(batch.id)
        answer = orjson.loads(client.files.content(batch.output_file_id or "").content)
    assert [choice["index"] for choice in answer["response"]["body"]["choices"]] == [0, 1, 2]
