"""Scripts whose calls go wrong on purpose: requests and replies lost, or held back and let through later.

All calls of a simulation go one after the other, so that a seed draws the same faults in the same order.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError

from shared.redis_client import Client, Scripts, script_text


@dataclass(frozen=True)
class Mix:
    """How often what goes wrong; shares of actions, calls or messages."""

    lost: float = 0.02
    late: float = 0.05
    dropped: float = 0.05
    worker_kill: float = 0.004
    worker_pause: float = 0.004
    gateway_kill: float = 0.002
    leave: float = 0.004
    cancel: float = 0.004
    release: float = 0.01
    join: float = 0.004
    expire: float = 0.002
    script_flush: float = 0.002
    crash: float = 0.0
    flush: float = 0.0
    poison: float = 0.01
    detached: float = 0.1
    max_crashes: int = 5

    @property
    def can_lose_data(self) -> bool:
        return self.crash > 0 or self.flush > 0


class Faults:
    """Draws what happens to each call, or obeys `planned` (script -> fate). `parked` are calls held back."""

    def __init__(self, rng: random.Random, *, lost: float = 0.0, parked: float = 0.0) -> None:
        self._rng = rng
        self._lost = lost
        self._park = parked
        self._num_busy = 0
        self._idle = asyncio.Event()
        self._turn = asyncio.Lock()
        self.planned: dict[str, str] = {}
        self.parked: list[asyncio.Future[None]] = []
        self.stats: Counter[str] = Counter()

    def calm(self) -> None:
        self._lost = self._park = 0.0
        while self.parked:
            self.let_through(0)

    def draw(self, name: str) -> str:
        """What happens to a call of script `name`; '' when nothing does. What was planned for it comes first."""
        if name in self.planned:
            return self.planned.pop(name)
        fate = self._rng.random()
        shares = (self._lost, self._lost, self._park / 2, self._park / 2)
        for kind, share in zip(("lost_request", "lost_reply", "late_request", "late_reply"), shares, strict=True):
            if fate < share:
                self.stats[f"{kind}:{name}"] += 1
                return kind
            fate -= share
        return ""

    async def hold_back(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.parked.append(future)
        try:
            await future
        finally:
            if future in self.parked:
                self.parked.remove(future)

    def let_through(self, index: int) -> None:
        future = self.parked.pop(index)
        if not future.done():
            future.set_result(None)

    async def one_at_a_time(self, call: Callable[[], Any]) -> Any:
        self._num_busy += 1
        try:
            async with self._turn:
                return await call()
        finally:
            self._num_busy -= 1
            self._idle.set()

    async def quiet(self) -> None:
        """Returns when every task has ended, or waits for a held-back call or for something that is not a call."""
        rounds = 0
        while rounds < 6:
            rounds += 1
            if self._num_busy:
                self._idle.clear()
                await self._idle.wait()
                rounds = 0
            await asyncio.sleep(0)


class FaultyScripts(Scripts):
    """One process's way to the server. A killed process (`is_dead`) reaches it no more."""

    def __init__(self, client: Client, faults: Faults) -> None:
        super().__init__(client)
        self._faults = faults
        self.is_dead = False

    async def run(self, name: str, key: str, *args: bytes | str | int | float) -> Any:
        fate = "" if self.is_dead else self._faults.draw(name)
        if fate == "late_request":
            await self._faults.hold_back()
        if self.is_dead or fate == "lost_request":
            raise RedisConnectionError("the request was lost")
        reply = await self._faults.one_at_a_time(lambda: super(FaultyScripts, self).run(name, key, *args))
        if fate == "late_reply":
            await self._faults.hold_back()
        if self.is_dead or fate == "lost_reply":
            raise RedisConnectionError("the reply was lost")
        return reply


class MutatedScripts(Scripts):
    """One script with one defence taken out: `old` in its text becomes `new`."""

    def __init__(self, client: Client, name: str, old: str, new: str) -> None:
        super().__init__(client)
        assert old in script_text(name), f"{name} has no {old!r}: the mutation is out of date"
        self._mutated = name, script_text(name).replace(old, new)

    def text(self, name: str) -> str:
        return self._mutated[1] if name == self._mutated[0] else super().text(name)
