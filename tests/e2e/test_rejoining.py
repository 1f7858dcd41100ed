"""Clients that come back: idempotency keys, streams resumed and joined on another gateway, detached requests."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, ConflictError

from loadtest.stack import Stack
from tests.e2e.books import books_of, settled_books
from tests.e2e.conftest import SIMULATED
from tests.e2e.streams import CHAT, call, chat_stream, events_of

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two gateways, one worker; for tests that break nothing."""
    with Stack(tmp_path_factory.mktemp("pair"), num_gateways=2, env=SIMULATED) as stack:
        yield stack


@pytest.fixture
def breakable_pair(tmp_path: Path) -> Iterator[Stack]:
    with Stack(tmp_path, num_gateways=2, env=SIMULATED) as stack:
        yield stack


async def undisturbed(stack: Stack, **fields: Any) -> list[str]:
    """The payloads of a whole stream, as its one client sees them, without what names the request."""
    async with chat_stream(stack.base_url, **fields) as stream:
        return shape_of((await stream.read()).data)


def shape_of(data: list[str]) -> list[str]:
    return [payload[payload.find('"choices"') :] for payload in data]


async def total_admitted(stack: Stack) -> int:
    sums = (await books_of(stack)).sums
    return sum(sums[state] for state in ("waiting", "running", "finished", "cancelled"))


async def test_a_retry_with_the_same_key_joins_the_running_stream(pair: Stack) -> None:
    expected, before = await undisturbed(pair), await total_admitted(pair)
    key = {"Idempotency-Key": "retry-1"}
    async with chat_stream(pair.base_urls[0], key) as first:
        await first.read(5)
        async with chat_stream(pair.base_urls[1], key) as second, chat_stream(pair.base_urls[0], key) as third:
            streams = await asyncio.gather(first.read(), second.read(), third.read())
    assert [shape_of(stream.data) for stream in streams] == [expected] * 3
    assert len({stream.request_id for stream in streams}) == 1
    assert await total_admitted(pair) == before + 1


async def test_a_finished_answer_is_given_again_and_another_body_is_a_conflict(pair: Stack) -> None:
    key = {"Idempotency-Key": "finished"}
    async with AsyncOpenAI(base_url=f"{pair.base_urls[0]}/v1", api_key="none") as client:
        first = await client.chat.completions.create(**CHAT, max_tokens=5, extra_headers=key)
        again = await client.chat.completions.create(**CHAT, max_tokens=5, extra_headers=key)
        assert first == again
        with pytest.raises(ConflictError) as conflict:
            await client.chat.completions.create(**CHAT, max_tokens=6, extra_headers=key)
    assert conflict.value.response.headers["x-should-retry"] == "false"
    assert conflict.value.code == "idempotency_key_reused"


async def test_a_request_with_a_key_goes_on_when_its_client_leaves(pair: Stack) -> None:
    expected, key = await undisturbed(pair), {"Idempotency-Key": "left"}
    async with chat_stream(pair.base_urls[0], key) as first:
        await first.read(3)
    async with chat_stream(pair.base_urls[0], key) as again:
        assert shape_of((await again.read()).data) == expected
    assert again.request_id == first.request_id
    assert (await settled_books(pair)).problems == []


async def test_a_cancelled_run_is_run_anew(pair: Stack) -> None:
    key = {"Idempotency-Key": "cancelled"}
    async with chat_stream(pair.base_urls[0], key, max_tokens=4000) as first:
        await first.read(3)
        reply = await call("POST", f"{pair.base_urls[1]}/v1/requests/{first.request_id}/cancel")
        assert reply.json() == {"id": first.request_id, "object": "request", "status": "cancelled"}
        assert '"code":"request_cancelled"' in (await first.read()).data[-2]
    async with chat_stream(pair.base_urls[1], key, max_tokens=4000) as anew:
        await anew.read(3)
        assert anew.request_id != first.request_id
        await call("POST", f"{pair.base_urls[0]}/v1/requests/{anew.request_id}/cancel")
        await anew.read()
    assert (await settled_books(pair)).problems == []


async def test_two_clients_on_two_gateways_and_one_leaves(pair: Stack) -> None:
    expected = await undisturbed(pair, max_tokens=100)
    async with chat_stream(pair.base_urls[0], max_tokens=100) as first:
        await first.read(3)
        async with events_of(pair.base_urls[1], first.request_id) as second:
            await second.read(3)
            await first.response.aclose()
            await second.read()
    assert shape_of(second.data) == expected
    assert second.ids == list(range(1, len(expected) + 1))


async def test_a_stream_is_resumed_on_another_gateway_after_its_own_was_killed(breakable_pair: Stack) -> None:
    stack = breakable_pair
    expected = await undisturbed(stack, max_tokens=150)
    async with chat_stream(stack.base_urls[0], max_tokens=150) as first:
        await first.read(7)
        stack.gateways[0].send_signal(signal.SIGKILL)
        async with events_of(stack.base_urls[1], f"chatcmpl-{first.request_id}", starting_after=7) as rest:
            await rest.read()
    assert shape_of(first.data[:7] + rest.data) == expected
    assert rest.ids[0] == 8
    assert (await settled_books(stack)).problems == []


async def test_a_finished_stream_is_read_again_from_where_a_client_was(pair: Stack) -> None:
    async with chat_stream(pair.base_urls[0], max_tokens=9, stream_options={"include_usage": True}) as first:
        await first.read()
    async with events_of(pair.base_urls[1], first.request_id, {"Last-Event-ID": "4"}) as rest:
        await rest.read()
    assert rest.data == first.data[4:]
    assert rest.ids == list(range(5, len(first.data) + 1))


async def test_a_detached_request_finishes_without_its_client(pair: Stack) -> None:
    async with chat_stream(pair.base_urls[0], {"X-Headrace-Detach": "true"}) as first:
        await first.read(2)
    assert first.response.headers["x-headrace-durability"] == "aof"
    async with events_of(pair.base_urls[1], first.request_id) as rest:
        assert shape_of((await rest.read()).data) == await undisturbed(pair)
    standing = (await call("GET", f"{pair.base_urls[1]}/v1/requests/{first.request_id}")).json()
    assert (standing["status"], standing["completion_tokens"]) == ("finished", 60)
    assert [event["event"] for event in standing["events"]] == ["taken", "first_token"]


async def test_what_is_not_there_or_not_meant_is_refused(pair: Stack) -> None:
    base = f"{pair.base_url}/v1/requests"
    for path, status in (("/nothing", 404), ("/nothing/events", 404), ("/%7Bx%7D", 404)):
        assert (await call("GET", base + path)).status_code == status
    assert (await call("POST", f"{base}/nothing/cancel")).status_code == 404
    for headers in ({"Idempotency-Key": "with blanks"}, {"X-Headrace-Detach": "perhaps"}):
        with pytest.raises(httpx.HTTPStatusError, match="400"):
            async with chat_stream(pair.base_url, headers):
                pass
