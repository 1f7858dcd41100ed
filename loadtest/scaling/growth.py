"""A fleet that follows `/operator/v1/scaling` as an autoscaler would: up at once, down when it was wanted for a while.

Nothing waits and none lives; then requests come faster, and stop. What is kept is a row a second.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from loadtest.scaling.fleet import OPERATOR_KEY, Fleet
from loadtest.scaling.load import MODEL, Clients

POLL_S = 1.0


@dataclass(slots=True)
class Follower:
    """`hold_s`: as HPA's stabilization window, the most that was wanted within it is kept."""

    hold_s: float
    _wanted: deque[tuple[float, int]] = field(default_factory=deque[tuple[float, int]])

    def size(self, wanted: int, at_s: float) -> int:
        self._wanted.append((at_s, wanted))
        while self._wanted[0][0] < at_s - self.hold_s:
            self._wanted.popleft()
        return max(number for _, number in self._wanted)


@dataclass(frozen=True, slots=True)
class Row:
    """`started`: workers asked for, those that are still starting too. `tokens_per_s`: since the row before."""

    at_s: float
    waiting: int
    running: int
    oldest_s: float
    wanted: int
    because: str
    started: int
    live: int
    tokens_per_s: float
    worker_tokens_per_s: float


async def watch(base_url: str, fleet: Fleet, query: dict[str, int], hold_s: float, rows: list[Row]) -> None:
    """Until cancelled."""
    follower = Follower(hold_s)
    headers = {"authorization": f"Bearer {OPERATOR_KEY}"}
    began = last_s = time.monotonic()
    last_tokens = 0.0
    async with httpx.AsyncClient(base_url=base_url, headers=headers, trust_env=False, timeout=30) as client:
        while True:
            answer = (await client.get("/operator/v1/scaling", params={"model": MODEL, **query})).raise_for_status()
            told: dict[str, Any] = answer.json()["data"][0]
            now = time.monotonic()
            fleet.resize(follower.size(told["wanted_workers"], now))
            figures = told["revisions"][0]
            per_s = (fleet.tokens - last_tokens) / max(now - last_s, 0.001)
            last_s, last_tokens = now, fleet.tokens
            rows.append(
                Row(
                    round(now - began, 1), figures["waiting"], figures["running"], figures["oldest_age_ms"] / 1000,
                    told["wanted_workers"], figures["because"], fleet.size, told["live_workers"], round(per_s, 1),
                    figures["worker_tokens_per_s"],
                )
            )  # fmt: skip
            await asyncio.sleep(max(0.0, POLL_S - (time.monotonic() - now)))


async def grow(
    base_url: str, fleet: Fleet, clients: Clients, phases: Sequence[tuple[float, float]], query: dict[str, int],
    hold_s: float,
) -> list[Row]:  # fmt: skip
    """The phases' requests, and then until the fleet is gone again (for a minute at most)."""
    rows: list[Row] = []
    watching = asyncio.create_task(watch(base_url, fleet, query, hold_s, rows))
    await clients.arrive(phases)
    give_up = time.monotonic() + 60
    while not watching.done() and (not rows or rows[-1].started or rows[-1].live) and time.monotonic() < give_up:  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)
    if watching.done():
        watching.result()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    return rows
