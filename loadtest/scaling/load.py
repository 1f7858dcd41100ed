"""Clients of the scaling runs: closed loops that keep a fleet full, and arrivals that do not care how full it is."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from loadtest.client import complete
from shared.redis_client import end_tasks

MODEL = "simulated"


@dataclass(slots=True)
class Clients:
    """`first_s`: seconds to the first token of each answer, by when it was asked (monotonic)."""

    port: int
    max_tokens: int
    first_s: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    num_asked: int = 0
    failed: list[str] = field(default_factory=list[str])

    async def ask(self) -> None:
        asked = time.monotonic()
        self.num_asked += 1
        body = {
            "model": MODEL, "prompt": f"river {self.num_asked}", "max_tokens": self.max_tokens, "ignore_eos": True,
        }  # fmt: skip
        try:
            reply = await complete(self.port, body, limit_s=300)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            self.failed.append(repr(error))
            return
        if reply.status != 200 or b"data: [DONE]" not in reply.tail:
            self.failed.append(f"{reply.status} {reply.tail[-300:]!r}")
        self.first_s.append((asked, reply.first_s))

    async def keep_full(self, number: int, seconds: float) -> None:
        """So many at once, each asking again as soon as it is answered; cut off at the end."""
        loops = [asyncio.create_task(self._again()) for _ in range(number)]
        await asyncio.wait(loops, timeout=seconds)
        await end_tasks(*loops)

    async def arrive(self, phases: Sequence[tuple[float, float]], seed: int = 1) -> None:
        """(requests a second, for seconds), one after the other, at random times; returns when all are answered."""
        rng = random.Random(seed)
        async with asyncio.TaskGroup() as group:
            due = time.monotonic()
            for per_s, seconds in phases:
                end = time.monotonic() + seconds
                due = max(due, time.monotonic())
                while per_s and (due := due + rng.expovariate(per_s)) < end:
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
                    group.create_task(self.ask())
                await asyncio.sleep(max(0.0, end - time.monotonic()))

    async def _again(self) -> None:
        while True:
            await self.ask()
