"""The proxy, between two real sockets: it carries, and misbehaves as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from loadtest.proxy import Proxy, ProxyThread


@pytest.fixture
def thread() -> Iterator[ProxyThread]:
    proxies = ProxyThread()
    yield proxies
    proxies.stop()


@pytest.fixture
async def proxy(thread: ProxyThread) -> AsyncIterator[Proxy]:
    """In front of a server that says everything back."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1000):
                writer.write(data)
        except OSError:
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        yield thread.open(server.sockets[0].getsockname()[1])


async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, words: bytes = b"hello") -> bytes:
    writer.write(words)
    return await reader.readexactly(len(words))


async def test_it_carries_both_ways(proxy: Proxy) -> None:
    ends = await asyncio.open_connection("127.0.0.1", proxy.port)
    assert await say(*ends) == b"hello"
    ends[1].close()


@pytest.mark.parametrize("how", ["cut", "reset"])
async def test_a_connection_is_ended_and_a_new_one_may_come(proxy: Proxy, how: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    await say(reader, writer)
    getattr(proxy, how)()
    try:
        assert await reader.read() == b"" and how == "cut"
    except ConnectionResetError:
        assert how == "reset"
    writer.close()
    again = await asyncio.open_connection("127.0.0.1", proxy.port)
    assert await say(*again) == b"hello"
    again[1].close()


async def test_a_blackhole_swallows_nothing_for_good(proxy: Proxy) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    proxy.blackhole(is_on=True)
    saying = asyncio.create_task(say(reader, writer))
    _, waiting = await asyncio.wait([saying], timeout=0.1)
    assert waiting
    proxy.heal()
    assert await saying == b"hello"
    writer.close()


async def test_it_refuses_until_it_is_told_otherwise(proxy: Proxy) -> None:
    proxy.refuse(is_on=True)
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    assert await reader.read() == b""
    writer.close()
    proxy.heal()
    again = await asyncio.open_connection("127.0.0.1", proxy.port)
    assert await say(*again) == b"hello"
    again[1].close()
