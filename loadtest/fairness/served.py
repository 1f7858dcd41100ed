"""Who is served how much, as clients see it: real processes, a key a tenant, streams over HTTP, tokens as they arrive.

Valkey, two gateways, two workers whose steps take the time they are told to, so that the workers and not the gateways
are what is short (`Watch` says whether they were). Clients ask again as soon as an answer has ended, so every tenant
always has something waiting; now and then a newcomer brings one request. Each answer is held against its `usage`.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
import statistics
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.client import complete
from loadtest.fairness.tenants import Sizes, Tenant, newcomers
from loadtest.fairness.verdict import WINDOW_S, Ledger
from loadtest.stack import Stack
from shared import keys
from shared.access.entries import KeyEntry, entry_as_toml, sha256_of
from shared.config import RedisSettings
from shared.redis_client import connect

MODEL = "simulated"
NUM_GATEWAYS = 2
NEWCOMERS = newcomers(300)
NEWCOMER_PAUSE_S = 1.0
OPENING_PAUSE_S = 0.01  # they come one after the other, so that they do not move in step
WATCH_S = 0.25
_USAGE = re.compile(rb'"prompt_tokens":(\d+),"completion_tokens":(\d+)')


@dataclass(frozen=True, slots=True)
class Fleet:
    """How fast the workers are: sequences at once in each, and what a step takes."""

    slots: int
    step_ms: float
    num_workers: int = 2

    def settings(self) -> dict[str, object]:
        return {
            "backend": "simulated", "max_num_seqs": self.slots, "sim_step_us": self.step_ms * 1000,
            "sim_prefill_us_per_token": 0, "max_waiting": 10_000, "keepalive_s": 60, "log_level": "warning",
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Load:
    """What comes, how fast the workers are, how long after all have come in it is steady, and for how long then."""

    sizes: Sizes
    fleet: Fleet
    warm_up_s: int
    num_windows: int


@dataclass(slots=True)
class Watch:
    """Whether the workers were what was short: samples of (second, tenants with something waiting, running)."""

    samples: list[tuple[float, int, int]] = field(default_factory=list[tuple[float, int, int]])

    def least_waiting(self, first_s: float) -> int:
        return min(num_tenants for at_s, num_tenants, _ in self.samples if at_s >= first_s)

    def mean_running(self, first_s: float) -> float:
        return statistics.fmean(num_running for at_s, _, num_running in self.samples if at_s >= first_s)


def write_keys(file: Path, tenants: Iterable[Tenant]) -> Path:
    """A keys file with a key for each tenant: its name."""
    entries = [KeyEntry(sha256=sha256_of(tenant.name), name=tenant.name, weight=tenant.weight) for tenant in tenants]
    file.write_text("\n".join(map(entry_as_toml, entries)))
    return file


class Clients:
    """Closed loops, each with one request after the other. `steady_s`: the second from which figures count.
    `taken_before`: how many requests were taken between each newcomer's admission and its take."""

    def __init__(self, stack: Stack, sizes: Sizes, seed: int) -> None:
        self.ledger = Ledger()
        self.watch = Watch()
        self.taken_before: list[int] = []
        self.steady_s = 0
        self._stack = stack
        self._sizes = sizes
        self._rng = random.Random(seed)
        self._ended: list[str] = []
        self._newcomers: list[str] = []
        self._is_over = False
        self._started = time.monotonic()

    async def run(self, tenants: Sequence[Tenant], warm_up_s: int, steady_for_s: int) -> None:
        """All come in, one after the other, and go on. Raises what a client met that it should not."""
        client: Any = connect(RedisSettings(redis_url=self._stack.valkey.url))
        (revision,) = [name.decode() for name in await client.hkeys(keys.MODELS)]
        looking = asyncio.create_task(self._look(client, revision))
        loops = [asyncio.create_task(self._newcome())]
        self._started = time.monotonic()
        for tenant in tenants:
            for number in range(tenant.backlog):
                loops.append(asyncio.create_task(self._loop(tenant, number)))
                await asyncio.sleep(OPENING_PAUSE_S)
        self.steady_s = math.ceil(self.now_s()) + warm_up_s
        timeout_s = self.steady_s + steady_for_s - self.now_s()
        ended, running = await asyncio.wait(loops, timeout=timeout_s, return_when=asyncio.FIRST_EXCEPTION)
        self._is_over = True
        for loop in running:
            loop.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await looking  # ends by itself: a command in flight on its connection is not to be cancelled
        for loop in ended:
            loop.result()
        self.taken_before = await _taken_before(client, revision, self._newcomers, self._ended)
        await client.aclose()

    def now_s(self) -> float:
        return time.monotonic() - self._started

    async def _loop(self, tenant: Tenant, number: int) -> None:
        while not self._is_over:
            self._ended.append((await self._ask(tenant, number))[0])

    async def _newcome(self) -> None:
        for tenant in NEWCOMERS:
            await asyncio.sleep(NEWCOMER_PAUSE_S)
            request_id, wait_s = await self._ask(tenant, 0)
            self._newcomers.append(request_id)
            self.ledger.waits.append(wait_s)

    async def _ask(self, tenant: Tenant, number: int) -> tuple[str, float]:
        """One request to its end: its id, seconds to its first token. The prompt is served with that."""
        prompt, answer = self._sizes.draw(self._rng)
        self.ledger.largest = max(self.ledger.largest, prompt + answer)
        num_tokens = 0

        def on_data(data: bytes) -> None:
            nonlocal num_tokens
            if b'"finish_reason":null' in data:
                self.ledger.serve(self.now_s(), tenant.name, 1 if num_tokens else prompt + 1)
                num_tokens += 1

        body = {
            "model": MODEL, "prompt": " river" * prompt, "max_tokens": answer, "ignore_eos": True,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        port = self._stack.ports[tenant.gateways[number % len(tenant.gateways)]]
        reply = await complete(port, body, {"authorization": f"Bearer {tenant.name}"}, on_data=on_data)
        usage = _USAGE.search(reply.tail)
        told = tuple(map(int, usage.groups())) if usage else ()
        if told != (prompt, answer) or num_tokens != answer:
            raise RuntimeError(f"{prompt} and {answer} asked, {num_tokens} came, {told} told: {reply}")
        return reply.request_id, reply.first_s

    async def _look(self, client: Any, revision: str) -> None:
        while not self._is_over:
            waiting = await client.zcard(keys.flows(revision, "default"))
            running = await client.hget(keys.counts(revision), "running")
            self.watch.samples.append((self.now_s(), waiting, int(running or 0)))
            await asyncio.sleep(WATCH_S)


async def _taken_before(client: Any, revision: str, newcomers: Sequence[str], others: Sequence[str]) -> list[int]:
    """For each newcomer, how many others were taken between its admission and its take, by the server's clock."""
    pipeline = client.pipeline(transaction=False)
    for request_id in (*newcomers, *others):
        pipeline.hmget(keys.request(revision, request_id), "admitted_at", "taken_at")
    times = [(int(admitted), int(taken)) for admitted, taken in await pipeline.execute()]
    of_others = sorted(taken for _, taken in times[len(newcomers) :])
    return [bisect_left(of_others, taken) - bisect_right(of_others, came) for came, taken in times[: len(newcomers)]]


def serve(folder: Path, tenants: Sequence[Tenant], load: Load, window_s: int = WINDOW_S) -> Clients:
    """A load on a stack of its own."""
    env = {**load.fleet.settings(), "keys_file": write_keys(folder / "keys.toml", (*tenants, *NEWCOMERS))}
    with Stack(folder, num_workers=load.fleet.num_workers, num_gateways=NUM_GATEWAYS, env=env) as stack:
        clients = Clients(stack, load.sizes, seed=1)
        asyncio.run(clients.run(tenants, load.warm_up_s, load.num_windows * window_s))
        return clients
