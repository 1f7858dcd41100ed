"""What is left when a run is over: accepted requests and how they ended, books that balance, blocks in use.

Read from outside, straight from the server and from the gateways' metrics, as an operator would.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx
import orjson

from loadtest.stack import Stack
from shared import keys
from shared.config import RedisSettings
from shared.fsck import Books, fsck
from shared.redis_client import Scripts, connect
from shared.registry import Registry

_DONE = ("finished", "cancelled", "expired", "failed", "dead")
_POLL_S = 0.2
_IN_FLIGHT = re.compile(r"^headrace_requests_in_flight\{.*\} (\S+)$", re.MULTILINE)


@dataclass(slots=True)
class Rest:
    """`states` counts the accepted requests by state, `gone` among them. `problems` are what fsck found."""

    problems: list[str] = field(default_factory=list[str])
    states: Counter[str] = field(default_factory=Counter[str])
    gone: list[str] = field(default_factory=list[str])
    num_undone: int = 0
    num_running: int = 0
    kv_blocks_used: int = 0
    gateways_in_flight: float = 0.0

    @property
    def is_clean(self) -> bool:
        is_quiet = not (self.num_undone or self.num_running or self.kv_blocks_used or self.gateways_in_flight)
        return is_quiet and not self.problems

    def num_settled(self) -> int:
        return sum(self.states[state] for state in _DONE)

    def words(self) -> str:
        return (
            f"undone {self.num_undone}, running in engines {self.num_running}, KV blocks in use {self.kv_blocks_used}, "
            f"followed by gateways {self.gateways_in_flight:.0f}, fsck {len(self.problems)} problems"
        )


async def come_to_rest(stack: Stack, accepted: Sequence[str], patience_s: float) -> Rest:
    """Waits until nothing is under way any more; what is not clean after `patience_s` is returned as it is."""
    give_up = time.monotonic() + patience_s
    scripts = Scripts(connect(RedisSettings(redis_url=stack.valkey.url)))
    try:
        while True:
            rest = await _look(scripts, stack.base_urls)
            if rest.is_clean or time.monotonic() > give_up:
                await _count_states(scripts, accepted, rest)
                return rest
            await asyncio.sleep(_POLL_S)
    finally:
        await scripts.client.aclose()


async def _look(scripts: Scripts, base_urls: Sequence[str]) -> Rest:
    rest = Rest()
    for card in await Registry(scripts).models():
        books: Books = await fsck(scripts, card.revision)
        rest.problems += books.problems
        rest.num_undone += len(books.undone)
        for row in await Registry(scripts).workers(card.revision):
            raw = await scripts.client.hget(keys.worker(card.revision, row.worker_id), "load")
            load: dict[str, int] = orjson.loads(raw) if raw else {}
            rest.num_running += load.get("num_running", 0)
            rest.kv_blocks_used += load.get("kv_blocks_used", 0)
    async with httpx.AsyncClient(trust_env=False, timeout=5) as client:
        for url in base_urls:
            rest.gateways_in_flight += await _in_flight(client, url, rest)
    return rest


async def _in_flight(client: httpx.AsyncClient, url: str, rest: Rest) -> float:
    try:
        text = (await client.get(f"{url}/metrics")).text
    except httpx.HTTPError as error:
        rest.problems.append(f"{url} does not answer: {error}")
        return 0.0
    return sum(float(value) for value in _IN_FLIGHT.findall(text))


async def _count_states(scripts: Scripts, accepted: Sequence[str], rest: Rest) -> None:
    cards = await Registry(scripts).models()
    for request_id in accepted:
        found = [await scripts.client.hget(keys.request(card.revision, request_id), "state") for card in cards]
        state = next((value.decode() for value in found if value), "gone")
        rest.states[state] += 1
        if state == "gone":
            rest.gone.append(request_id)
