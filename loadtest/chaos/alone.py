"""Each kind of fault once, alone: the next one waits until every process is there and every client is served again.

So a pause that a client saw in a fault's time is that fault's doing: `report` attributes it exactly, where in the storm
it has to guess. `NOTHING` is a time without any fault, and says what this machine does by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

import httpx

from loadtest.chaos.fleet import Fleet
from loadtest.chaos.load import Load
from loadtest.chaos.report import Injected

NOTHING = "(nothing)"
_NOTHING_S = 5.0
# Served without a break for so long: calm.
_CALM_S = 1.0
_SETTLES_S = 60.0
_POLL_S = 0.1


class Alone:
    """`strike` causes one fault of a kind and tells what it did. `struck` are in order, and do not overlap: each lasts
    until everything flowed again. `remarks`: what did not come to rest."""

    def __init__(self, fleet: Fleet, load: Load, strike: Callable[[str], Awaitable[str]]) -> None:
        self._fleet = fleet
        self._load = load
        self._strike = strike
        self.struck: list[Injected] = []
        self.remarks: list[str] = []
        self._served_after_s = 0.0

    async def run(self, kinds: Iterable[str], say: Callable[[str], None]) -> None:
        await self._until_calm()  # it has just started
        await self.one(NOTHING, self._nothing())
        for kind in kinds:
            await self.one(kind, self._strike(kind))
            say(f"alone   {kind:28} {self._served_after_s:5.1f} s until all were served again ({self.struck[-1].what})")

    async def one(self, kind: str, striking: Awaitable[str]) -> None:
        began = time.monotonic()
        what = await striking
        calm_since = await self._until_calm()
        self._served_after_s = (calm_since or time.monotonic()) - began
        if not calm_since:
            self.remarks.append(f"{_SETTLES_S:.0f} s after {kind} alone not all clients were served again")
        self.struck.append(Injected(kind, what, began, time.monotonic()))

    async def _until_calm(self) -> float:
        """When the calm began that holds now; 0 if none came."""
        give_up = time.monotonic() + _SETTLES_S
        calm_since = 0.0
        async with httpx.AsyncClient(trust_env=False, timeout=2) as client:
            while not calm_since or time.monotonic() - calm_since < _CALM_S:
                is_calm = self._load.is_flowing() and await self._fleet.is_whole(client)
                calm_since = (calm_since or time.monotonic()) if is_calm else 0.0
                if time.monotonic() > give_up:
                    return 0.0
                await asyncio.sleep(_POLL_S)
        return calm_since

    async def _nothing(self) -> str:
        await asyncio.sleep(_NOTHING_S)
        return "no fault at all"
