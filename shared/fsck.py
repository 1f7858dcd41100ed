"""Holds the books against each other: hashes, streams, pending lists, indexes and counters. Every test's oracle.

Reads only, in pages. While the queue moves, a page is exact and the sums are not: run it at rest, or twice.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import ResponseError

from shared import keys
from shared.redis_client import Scripts

_PAGE = 200


@dataclass(slots=True)
class Books:
    """What was found: `problems` in words, and the sums of what is there."""

    problems: list[str] = field(default_factory=list[str])
    sums: Counter[str] = field(default_factory=Counter[str])
    queued: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    waiting: Counter[str] = field(default_factory=Counter[str])
    owned: Counter[str] = field(default_factory=Counter[str])
    running: Counter[str] = field(default_factory=Counter[str])
    undone: set[str] = field(default_factory=set[str])


async def fsck(scripts: Scripts, model: str) -> Books:
    """Compare everything of one model revision."""
    books = Books()
    prefix = keys.request(model, "")
    page: list[str] = []
    async for key in scripts.client.scan_iter(match=prefix.replace("[", "\\[") + "*", count=_PAGE):
        page.append(key.decode().removeprefix(prefix))
        if len(page) == _PAGE:
            await _read_page(scripts, model, page, books)
            page = []
    await _read_page(scripts, model, page, books)
    await _compare_counts(scripts, model, books)
    await _compare_indexes(scripts, model, books)
    await _compare_tenants(scripts, model, books)
    await _compare_bells(scripts, model, books)
    return books


async def _read_page(scripts: Scripts, model: str, ids: list[str], books: Books) -> None:
    if not ids:
        return
    problems, facts = await scripts.run("fsck", keys.counts(model), *ids)
    books.problems += [f"{request_id.decode()}: {words.decode()}" for request_id, words in problems]
    for raw in facts:
        request_id, state, service_class, tenant = (part.decode() for part in raw[:4])
        books.sums[state] += 1
        if state == "waiting":
            books.waiting[service_class] += 1
            books.sums["waiting_tokens"] += int(raw[4])
            books.sums["waiting_bytes"] += int(raw[5])
            books.queued[(service_class, tenant)] += raw[7] != b"q:retry"
        if state == "running":
            books.owned[raw[6].decode()] += 1
            books.running[tenant] += 1
        if state in ("waiting", "running"):
            books.undone.add(request_id)


async def _compare_counts(scripts: Scripts, model: str, books: Books) -> None:
    raw = await scripts.client.hgetall(keys.counts(model))
    for name in ("waiting", "waiting_tokens", "waiting_bytes", "running"):
        counted = int(raw.get(name.encode(), b"0"))
        if counted != books.sums[name]:
            books.problems.append(f"counts.{name} is {counted}, the requests add up to {books.sums[name]}")
    for service_class in ("priority", "default", "flex", "batch"):
        counted, wanted = int(raw.get(f"waiting:{service_class}".encode(), b"0")), books.waiting[service_class]
        if counted != wanted:
            books.problems.append(f"counts.waiting:{service_class} is {counted}, the requests add up to {wanted}")


async def _compare_indexes(scripts: Scripts, model: str, books: Books) -> None:
    client = scripts.client
    entries = 0
    async for key in client.scan_iter(match=f"{keys.base(model)}q:*"):
        entries += int(await client.xlen(key))
        for consumer in await _consumers(scripts, key):
            if consumer["pending"] == 0:
                name = consumer["name"].decode()
                books.problems.append(f"{key.decode()} has the consumer {name}, who runs nothing of it")
    if entries != len(books.undone):
        books.problems.append(f"{entries} stream entries for {len(books.undone)} undone requests")
    for service_class in ("priority", "default", "flex", "batch"):
        flows: list[Any] = await client.zrange(keys.flows(model, service_class), 0, -1)
        there = {name.decode() for name in flows}
        wanted = {tenant for (kind, tenant), number in books.queued.items() if kind == service_class and number > 0}
        if there != wanted:
            books.problems.append(f"flows:{service_class} is {sorted(there)}, wanted {sorted(wanted)}")
    async for key in client.scan_iter(match=f"{keys.base(model)}own:*"):
        worker = key.decode().rpartition(":")[2]
        if int(await client.zcard(key)) != books.owned[worker]:
            books.problems.append(f"own:{worker} does not hold its {books.owned[worker]} running requests")
    deadlines: list[bytes] = await client.zrange(keys.deadlines(model), 0, -1)
    stale = {name.decode() for name in deadlines} - books.undone
    if stale:
        books.problems.append(f"deadlines of requests that are done: {sorted(stale)}")


async def _consumers(scripts: Scripts, stream: bytes) -> list[dict[str, Any]]:
    """Of a stream that may have gone with its last entry meanwhile."""
    try:
        return await scripts.client.xinfo_consumers(stream, "w")
    except ResponseError as error:
        if "no such key" in str(error):
            return []
        raise


async def _compare_tenants(scripts: Scripts, model: str, books: Books) -> None:
    async for key in scripts.client.scan_iter(match=f"{keys.base(model)}tenant:*"):
        tenant = key.decode().rpartition(":")[2]
        raw = await scripts.client.hgetall(key.decode())
        wanted = {"running": books.running[tenant]}
        for service_class in ("priority", "default", "flex", "batch"):
            wanted[f"waiting:{service_class}"] = books.queued[(service_class, tenant)]
        for name, number in wanted.items():
            counted = int(raw.get(name.encode(), b"0"))
            if counted != number:
                books.problems.append(f"tenant:{tenant} has {name} {counted}, its requests add up to {number}")


async def _compare_bells(scripts: Scripts, model: str, books: Books) -> None:
    """Who is gone is neither idle nor on its way."""
    for key in (keys.idle(model), keys.woken(model)):
        for worker in await scripts.client.zrange(key, 0, -1):
            if not await scripts.client.exists(keys.worker(model, worker.decode())):
                books.problems.append(f"{key} has {worker.decode()}, who is not registered")
