"""What Redis holds after a test: nothing in flight, and books that balance. Read from outside, like an operator."""

from __future__ import annotations

import asyncio

import orjson

from loadtest.stack import Stack
from shared import keys
from shared.config import RedisSettings
from shared.fsck import Books, fsck
from shared.redis_client import Scripts, connect
from shared.registry import Registry
from shared.request_queue import Bounds, RequestQueue, Ticket


async def books_of(stack: Stack, model: str | None = None) -> Books:
    """The books of the stack's one model, or of the one of this name."""
    scripts = Scripts(connect(RedisSettings(redis_url=stack.valkey.url)))
    try:
        (card,) = [card for card in await Registry(scripts).models() if model in (None, card.name)]
        return await fsck(scripts, card.revision)
    finally:
        await scripts.client.aclose()


async def settled_books(stack: Stack, model: str | None = None) -> Books:
    """The books once nothing is waiting or running; the test's own timeout bounds the wait."""
    while True:
        books = await books_of(stack, model)
        if not books.undone:
            return books
        await asyncio.sleep(0.05)


async def counted_books(stack: Stack, state: str, number: int) -> Books:
    """The books once so many requests are in `state`, or more."""
    while True:
        books = await books_of(stack)
        if books.sums[state] >= number:
            return books
        await asyncio.sleep(0.01)


async def worker_loads(stack: Stack) -> list[dict[str, int]]:
    """What each live worker said of its engine in its last heartbeat."""
    scripts = Scripts(connect(RedisSettings(redis_url=stack.valkey.url)))
    try:
        (card,) = await Registry(scripts).models()
        rows = await Registry(scripts).workers(card.revision)
        names = [keys.worker(card.revision, row.worker_id) for row in rows if row.lease_left_ms > 0]
        raw = [await scripts.client.hget(name, "load") for name in names]
        return [orjson.loads(load) for load in raw if load]
    finally:
        await scripts.client.aclose()


async def admit_raw(stack: Stack, request_id: str, body: bytes) -> str:
    """Put any bytes into the queue as a body; the state it ends in."""
    scripts = Scripts(connect(RedisSettings(redis_url=stack.valkey.url)))
    try:
        (card,) = await Registry(scripts).models()
        queue = RequestQueue(scripts, card.revision, retention_s=60, lease_ms=1500)
        ticket = Ticket(request_id, "default", "t", prompt_tokens=1, max_tokens=1, n=1)
        await queue.admit(ticket, body, Bounds(0, 0, 0), gateway="")
        while True:
            state = await scripts.client.hget(keys.request(card.revision, request_id), "state")
            if state not in (b"waiting", b"running"):
                return (state or b"gone").decode()
            await asyncio.sleep(0.02)
    finally:
        await scripts.client.aclose()
