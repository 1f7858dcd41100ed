from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import httpx
from starlette.types import Receive, Scope, Send

from gateway.http.download import Download
from tests.unit.gateway.served import serving_app

CHUNK = b"x" * 1_000_000


class Blob:
    def __init__(self, num_chunks: int) -> None:
        self.num_chunks = num_chunks
        self.closed = asyncio.Event()

    async def chunks(self) -> AsyncGenerator[bytes]:
        try:
            for _ in range(self.num_chunks):
                yield CHUNK
        finally:
            self.closed.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        num_bytes = self.num_chunks * len(CHUNK)
        await Download(self.chunks(), num_bytes=num_bytes, stall_timeout_s=0.1)(scope, receive, send)


async def test_a_reader_gets_all_of_it() -> None:
    blob = Blob(3)
    async with serving_app(blob) as url, httpx.AsyncClient() as client:
        reply = await client.get(url)
    assert reply.content == 3 * CHUNK and reply.headers["content-length"] == "3000000"


async def test_a_reader_that_stops_is_cut_off_short_of_the_length() -> None:
    blob = Blob(40)
    async with serving_app(blob) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port, limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nhost: gateway\r\n\r\n")
        await blob.closed.wait()
        received = await reader.read()
        writer.close()
    assert b"content-length: 40000000" in received and len(received) < 40_000_000


async def test_who_leaves_closes_the_file() -> None:
    blob = Blob(400)
    async with serving_app(blob) as url, httpx.AsyncClient() as client:
        async with client.stream("GET", url) as reply:
            await anext(reply.aiter_bytes())
        await blob.closed.wait()
