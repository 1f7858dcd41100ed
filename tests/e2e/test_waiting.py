"""Clients that wait: what they are told, deadlines, classes; one worker that runs one request at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from loadtest.stack import Stack
from tests.e2e.books import counted_books, settled_books
from tests.e2e.conftest import SIMULATED
from tests.e2e.streams import CHAT, Stream, call, chat_stream, events_of

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    env = SIMULATED | {"max_num_seqs": 1, "keepalive_s": 0.05, "model_poll_s": 0.1}
    with Stack(tmp_path_factory.mktemp("narrow"), env=env) as stack:
        yield stack


@dataclass
class Queue:
    """`plug` runs and does not end by itself; `crowd` waits behind it."""

    plug: asyncio.Task[Stream]
    crowd: list[asyncio.Task[Stream]]

    def unplug(self) -> None:
        self.plug.cancel()


@contextlib.asynccontextmanager
async def a_queue(stack: Stack, num_waiting: int, **fields: Any) -> AsyncGenerator[Queue]:
    plug = asyncio.create_task(whole(stack, max_tokens=4000))
    await counted_books(stack, "running", 1)
    crowd = [asyncio.create_task(whole(stack, **fields)) for _ in range(num_waiting)]
    await counted_books(stack, "waiting", num_waiting)
    try:
        yield Queue(plug, crowd)
    finally:
        for task in (plug, *crowd):
            task.cancel()
        await asyncio.gather(plug, *crowd, return_exceptions=True)
        assert (await settled_books(stack)).problems == []


async def whole(stack: Stack, **fields: Any) -> Stream:
    async with chat_stream(stack.base_url, **fields) as stream:
        return await stream.read()


async def test_a_waiting_stream_says_its_position_as_it_changes(narrow: Stack) -> None:
    async with a_queue(narrow, 1, max_tokens=40) as queue, chat_stream(narrow.base_url, max_tokens=2) as stream:
        queue.unplug()
        await stream.read()
    said = [comment.split()[2] for comment in stream.comments if comment.startswith(": queued ")]
    assert said == ["position=2", "position=1"]


async def test_a_plain_reply_says_who_made_it_and_how_long_it_took(narrow: Stack) -> None:
    url, body = f"{narrow.base_url}/v1/chat/completions", CHAT | {"max_tokens": 2}
    async with a_queue(narrow, 1, max_tokens=2) as queue:
        asking = asyncio.create_task(call("POST", url, json=body))
        await counted_books(narrow, "waiting", 2)
        queue.unplug()
        reply = await asking
    assert reply.headers["x-headrace-queue-position"] == "2"
    assert reply.headers["x-headrace-worker"].startswith("w-")
    timings = dict(part.split("=") for part in reply.headers["x-headrace-timings"].split(", "))
    assert 0 < int(timings["queue_ms"]) <= int(timings["first_token_ms"]) <= int(timings["total_ms"])


async def test_a_waiting_request_is_described_and_its_resumed_stream_has_comments_of_one_line(narrow: Stack) -> None:
    async with a_queue(narrow, 1, max_tokens=20) as queue, chat_stream(narrow.base_url, max_tokens=2) as stream:
        standing = (await call("GET", f"{narrow.base_url}/v1/requests/{stream.request_id}")).json()
        assert (standing["status"], standing["queue"]["position"]) == ("waiting", 2)
        queue.unplug()
        async with events_of(narrow.base_url, stream.request_id) as resumed:
            raw = [line async for line in resumed.lines]
    comments = [i for i, line in enumerate(raw) if line.startswith(":")]
    assert comments and all(raw[i + 1] != "" for i in comments)


async def test_a_deadline_that_cannot_be_met_is_refused_with_a_time_to_come_back(narrow: Stack) -> None:
    url, body = f"{narrow.base_url}/v1/chat/completions", CHAT | {"max_tokens": 1, "deadline_ms": 60}
    async with a_queue(narrow, 40, max_tokens=20) as queue:
        queue.unplug()
        while (reply := await call("POST", url, json=body)).status_code != 429:
            # Until a rate is measured it is admitted, and expires.
            assert (reply.status_code, reply.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert reply.json()["error"]["code"] == "deadline_unreachable"
    assert 1 <= int(reply.headers["retry-after"]) <= 30


async def test_a_deadline_from_the_header_ends_a_running_answer(narrow: Stack) -> None:
    async with chat_stream(narrow.base_url, {"X-Headrace-Deadline-Ms": "300"}, max_tokens=4000) as stream:
        await stream.read()
    assert '"code":"deadline_exceeded"' in stream.data[-2] and len(stream.data) > 3


async def test_flex_is_served_beside_priority_and_says_so(narrow: Stack) -> None:
    async with a_queue(narrow, 30, max_tokens=4, service_tier="priority") as queue:
        asking = asyncio.create_task(whole(narrow, max_tokens=2, service_tier="flex"))
        await counted_books(narrow, "waiting", 31)
        queue.unplug()
        stream = await asking
        assert sum(not task.done() for task in queue.crowd) > 10
    assert '"service_tier":"flex"' in stream.data[0]


async def test_a_tier_that_is_reserved_is_refused(narrow: Stack) -> None:
    with pytest.raises(httpx.HTTPStatusError, match="400"):
        await whole(narrow, service_tier="batch")
