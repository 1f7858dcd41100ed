from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from gateway.http.sse import EventStream, StreamStalled, event


class Client:
    """An ASGI client that records writes; it may refuse to read, or leave."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.written = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()
        self.has_left = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.has_left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.reads.wait()
        self.messages.append(message)
        self.written.set()

    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.messages if message["type"] == "http.response.body"]

    async def until(self, body: bytes) -> None:
        while body not in self.bodies():
            self.written.clear()
            await self.written.wait()


class Source:
    def __init__(self, *batches: list[bytes], failure: Exception | None = None, hold: bool = False) -> None:
        self.batches, self.failure, self.hold = batches, failure, hold
        self.closed = 0

    async def events(self) -> AsyncGenerator[list[bytes], None]:
        try:
            yield []
            for batch in self.batches:
                yield batch
            if self.failure:
                raise self.failure
            if self.hold:
                await asyncio.Event().wait()
        finally:
            self.closed += 1


def run(source: Source, client: Client, *, keepalive_s: float = 5, stall_s: float = 5, scope: Any = None) -> Any:
    async def respond() -> None:
        events = source.events()
        await anext(events)
        stream = EventStream(events, keepalive_s=keepalive_s, stall_timeout_s=stall_s)
        await stream(scope or {"type": "http"}, client.receive, client.send)  # type: ignore[arg-type]

    return asyncio.create_task(respond())


async def test_one_frame_a_write_then_a_clean_end() -> None:
    source, client = Source([event(b"1"), event(b"2")], [], [event(b"[DONE]")]), Client()
    await run(source, client)
    assert client.bodies() == [b"data: 1\n\n", b"data: 2\n\n", b"data: [DONE]\n\n", b""]
    assert client.messages[-1]["more_body"] is False and source.closed == 1


async def test_headers_forbid_buffering() -> None:
    client = Client()
    await run(Source(), client)
    headers = dict(client.messages[0]["headers"])
    assert headers[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert headers[b"x-accel-buffering"] == b"no" and headers[b"cache-control"] == b"no-cache"
    assert b"content-length" not in headers


async def test_comments_are_written_while_nothing_comes() -> None:
    source, client = Source(hold=True), Client()
    task = run(source, client, keepalive_s=0.005)
    await client.until(b": keep-alive\n\n")
    assert client.messages[0]["type"] == "http.response.start"
    client.has_left.set()
    await task


async def test_a_client_that_leaves_closes_the_source() -> None:
    source, client = Source([event(b"1")], hold=True), Client()
    task = run(source, client)
    await client.until(event(b"1"))
    client.has_left.set()
    await task
    assert source.closed == 1
    assert all(message.get("more_body", True) for message in client.messages)


async def test_a_client_that_leaves_at_once_closes_an_opened_source() -> None:
    source, client = Source([event(b"1")], hold=True), Client()
    client.has_left.set()
    await run(source, client)
    assert source.closed == 1


@pytest.mark.parametrize("batches", [[[event(b"1")]], []], ids=["while writing", "while keeping alive"])
async def test_a_client_that_does_not_read_is_dropped(batches: list[list[bytes]]) -> None:
    source, client = Source(*batches, hold=True), Client()
    task = run(source, client, keepalive_s=0.005, stall_s=0.02)
    await client.until(batches[0][0]) if batches else await asyncio.sleep(0)
    client.reads.clear()
    with pytest.raises(StreamStalled):
        await task
    assert source.closed == 1 and client.bodies()[-1:] != [b""]


async def test_a_stalled_connection_is_closed_at_once_where_the_server_can(caplog: pytest.LogCaptureFixture) -> None:
    source, client, aborted = Source(hold=True), Client(), asyncio.Event()
    client.reads.clear()
    scope = {"type": "http", "extensions": {"headrace.abort": aborted.set}}
    await run(source, client, stall_s=0.01, scope=scope)
    assert aborted.is_set() and source.closed == 1
    assert "client_stalled" in caplog.messages


async def test_a_source_that_fails_ends_nothing_cleanly() -> None:
    source, client = Source([event(b"1")], failure=RuntimeError("lost")), Client()
    with pytest.raises(RuntimeError, match="lost"):
        await run(source, client)
    assert client.bodies() == [event(b"1")] and source.closed == 1


async def test_shutdown_closes_the_source() -> None:
    source, client = Source([event(b"1")], hold=True), Client()
    task = run(source, client)
    await client.until(event(b"1"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert source.closed == 1
