"""A worker that keeps failing stops taking, says so, and is let back in by a probe after a growing pause.

    pulling ──failures of so many different requests within the window──▶ quarantined ──pause──▶ probe ─good─▶ pulling
                                                                             ▲                     │
                                                                             └──── twice the pause ┘ bad

One request that fails again and again is that request's fault, and the rules of blame end it; several different ones
here are this worker's. Which failures count is decided by who calls `note`. Lives on the event loop; knows no Redis.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from worker.condition.phase import Phase, Standing
from worker.condition.warmup import Probe

log = logging.getLogger(__name__)
_MOST_PAUSE_S = 300.0


@dataclass(slots=True)
class Failures:
    """What failed lately. `limit` 0: nothing is ever too much."""

    limit: int
    window_s: float
    _at: dict[str, float] = field(default_factory=dict[str, float])

    def note(self, name: str, now_s: float) -> bool:
        """Whether it is too much now. A request that fails twice counts once, at its last time."""
        self._at[name] = now_s
        self._at = {each: at for each, at in self._at.items() if now_s - at <= self.window_s}
        return 0 < self.limit <= len(self._at)

    def forget(self) -> None:
        self._at.clear()


class Quarantine:
    """`begun` is set while it lasts, `over` while it does not. `probe` raises what breaks the engine."""

    def __init__(self, standing: Standing, failures: Failures, first_pause_s: float) -> None:
        self._standing = standing
        self._failures = failures
        self._first_pause_s = first_pause_s
        self._pause_s = first_pause_s
        self._ended_at = 0.0
        self.begun = asyncio.Event()
        self.over = asyncio.Event()
        self.over.set()
        self.why = ""

    @property
    def pause_s(self) -> float:
        return self._pause_s

    def note(self, kind: str, name: str) -> None:
        """A failure that may be this worker's: `name` is the request it struck."""
        self._standing.metrics.engine_failures.labels(kind).inc()
        if self._failures.note(name, time.monotonic()):
            self.begin(f"{kind}, the last of {self._failures.limit} failures within {self._failures.window_s:g} s")

    def begin(self, why: str, pause_s: float = 0.0) -> None:
        """Idempotent while it lasts. `pause_s`: at least so long at first."""
        if self.begun.is_set():
            return
        is_relapse = self._ended_at > 0 and time.monotonic() - self._ended_at < self._failures.window_s
        self._pause_s = max(pause_s, self._doubled() if is_relapse else self._first_pause_s)
        self.why = why
        self._standing.metrics.quarantines.inc()
        log.error("worker_quarantined", extra={"why": why, "pause_s": self._pause_s})
        self.over.clear()
        self.begun.set()
        self._standing.enter(Phase.QUARANTINED, why)

    async def run(self, probe: Callable[[], Awaitable[Probe]]) -> None:
        """For ever. Each time it has begun: pause and probe until one is good."""
        while True:
            await self.begun.wait()
            while True:
                await asyncio.sleep(self._pause_s)
                found = await probe()
                log.warning("worker_probed", extra={"is_good": found.is_good, "fault": found.fault})
                if found.is_good:
                    break
                self._pause_s = self._doubled()
            self._end()

    def _end(self) -> None:
        self._failures.forget()
        self._ended_at = time.monotonic()
        self.why = ""
        self.begun.clear()
        self.over.set()
        self._standing.enter(Phase.PULLING)

    def _doubled(self) -> float:
        return min(self._pause_s * 2, max(_MOST_PAUSE_S, self._first_pause_s))
