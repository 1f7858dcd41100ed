"""Processes killed for real in the middle of streams: every client gets all of its answer, once and in order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from openai import APIError, AsyncOpenAI

from loadtest.stack import Stack
from tests.e2e.books import admit_raw, books_of, settled_books, worker_loads
from tests.e2e.conftest import async_client_of

pytestmark = pytest.mark.e2e
MESSAGES: list[Any] = [{"role": "user", "content": "Tell me of the river."}]


@pytest.fixture
async def client(breakable: Stack) -> AsyncIterator[AsyncOpenAI]:
    async with async_client_of(breakable) as client:
        yield client


@pytest.fixture
async def idle_client(simulated: Stack) -> AsyncIterator[AsyncOpenAI]:
    async with async_client_of(simulated) as client:
        yield client


async def answer(client: AsyncOpenAI, *, max_tokens: int = 60, started: asyncio.Event | None = None) -> str:
    """One streamed greedy answer; `started` is set at its first text."""
    stream = await client.chat.completions.create(
        model="simulated", messages=MESSAGES, max_tokens=max_tokens, temperature=0, stream=True
    )
    parts: list[str] = []
    async for chunk in stream:
        parts.append(chunk.choices[0].delta.content or "")
        if started is not None and parts[-1]:
            started.set()
    return "".join(parts)


async def eight(client: AsyncOpenAI) -> tuple[list[asyncio.Task[str]], str]:
    """Eight running streams, each past its first text, and what each must say."""
    expected = await answer(client)
    started = [asyncio.Event() for _ in range(8)]
    tasks = [asyncio.create_task(answer(client, started=event)) for event in started]
    await asyncio.gather(*(event.wait() for event in started))
    return tasks, expected


async def test_a_killed_worker_is_not_noticed(breakable: Stack, client: AsyncOpenAI) -> None:
    tasks, expected = await eight(client)
    breakable.workers[0].send_signal(signal.SIGKILL)
    assert await asyncio.gather(*tasks) == [expected] * 8
    assert (await settled_books(breakable)).problems == []


async def test_a_worker_frozen_past_its_lease_is_fenced(breakable: Stack, client: AsyncOpenAI) -> None:
    tasks, expected = await eight(client)
    breakable.workers[0].send_signal(signal.SIGSTOP)
    try:
        assert await asyncio.gather(*tasks) == [expected] * 8
    finally:
        breakable.workers[0].send_signal(signal.SIGCONT)
    assert (await settled_books(breakable)).problems == []
    assert await answer(client) == expected


async def test_a_drained_worker_hands_over_in_the_middle(breakable: Stack, client: AsyncOpenAI) -> None:
    tasks, expected = await eight(client)
    breakable.workers[0].send_signal(signal.SIGTERM)
    breakable.workers[0].send_signal(signal.SIGTERM)
    assert await asyncio.gather(*tasks) == [expected] * 8
    assert breakable.workers[0].wait() == 0


async def test_a_killed_redis_loses_nothing_accepted(breakable: Stack, client: AsyncOpenAI) -> None:
    tasks, expected = await eight(client)
    breakable.valkey.kill()
    breakable.valkey.start()
    assert await asyncio.gather(*tasks) == [expected] * 8
    assert (await settled_books(breakable)).problems == []


async def test_a_killed_gateway_leaves_nothing_behind(breakable: Stack, client: AsyncOpenAI) -> None:
    started = asyncio.Event()
    lost = asyncio.create_task(answer(client, max_tokens=4000, started=started))
    await started.wait()
    breakable.restart_gateway()
    with pytest.raises((APIError, httpx.HTTPError)):
        await lost
    books = await settled_books(breakable)
    assert (books.problems, books.sums["cancelled"]) == ([], 1)
    await blocks_are_free(breakable)


async def test_a_client_that_leaves_frees_its_blocks(simulated: Stack) -> None:
    async with async_client_of(simulated) as client:
        await leave_in_the_middle(simulated, client)
    assert (await settled_books(simulated)).sums["cancelled"] >= 1
    await blocks_are_free(simulated)


async def leave_in_the_middle(stack: Stack, client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="simulated", messages=MESSAGES, max_tokens=4000, temperature=0, stream=True
    )
    await anext(aiter(stream))
    assert (await books_of(stack)).sums["running"] == 1
    await stream.close()


async def test_a_plain_request_is_cancelled_when_its_client_leaves(simulated: Stack) -> None:
    before = (await settled_books(simulated)).sums["cancelled"]
    body = {"model": "simulated", "messages": MESSAGES, "max_tokens": 4000}
    async with httpx.AsyncClient(trust_env=False) as client:
        asking = asyncio.create_task(client.post(f"{simulated.base_url}/v1/chat/completions", json=body, timeout=60))
        while (await books_of(simulated)).sums["running"] == 0:
            pass
        asking.cancel()
    while (await settled_books(simulated)).sums["cancelled"] == before:
        pass


async def blocks_are_free(stack: Stack) -> None:
    """Until every worker says in its heartbeat that no KV block is used."""
    while True:
        loads = await worker_loads(stack)
        if loads and all(load["kv_blocks_used"] == 0 and load["num_running"] == 0 for load in loads):
            return
        await asyncio.sleep(0.05)


async def test_a_body_no_worker_understands_fails_alone(simulated: Stack, idle_client: AsyncOpenAI) -> None:
    expected = await answer(idle_client)
    assert await admit_raw(simulated, "not-understood", b'{"from":"the future"}') == "failed"
    assert await answer(idle_client) == expected
