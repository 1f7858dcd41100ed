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


async def books_of(stack: Stack) -> Books:
    """The books of the stack's one model."""
    scripts = Scripts(connect(RedisSettings(redis_url=stack.valkey.url)))
    try:
        (card,) = await Registry(scripts).models()
        return await fsck(scripts, card.revision)
    finally:
        await scripts.client.aclose()


async def settled_books(stack: Stack) -> Books:
    """The books once nothing is waiting or running; the test's own timeout bounds the wait."""
    while True:
        books = await books_of(stack)
        if not books.undone:
            return books
        await asyncio.sleep(0.05)


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
