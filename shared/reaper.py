"""Reaping: any gateway or worker gives back the work of late workers, for every model, all the time.

Several reapers at once do no harm: the script is atomic. A gateway is forgotten only when every model is done
with it, so that no orphan is left behind.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

from redis.exceptions import RedisError

from shared.config import RedisSettings
from shared.redis_client import Scripts
from shared.registry import Registry
from shared.request_queue import Reaped, RequestQueue

log = logging.getLogger(__name__)
_MAX_PAGES = 400


@dataclass(slots=True)
class Reaper:
    """`on_reaped(kind, number)` counts what was moved or ended."""

    scripts: Scripts
    settings: RedisSettings
    on_reaped: Callable[[str, int], None]

    async def run(self) -> None:
        """Reap until cancelled. Jittered, so that many processes do not call at once."""
        while True:
            await asyncio.sleep(self.settings.reap_ms / 1000 * random.uniform(0.8, 1.0))
            try:
                await self.reap_all()
            except (RedisError, OSError) as error:
                log.warning("reap_failed", extra={"error": str(error)})

    async def reap_all(self) -> None:
        registry = Registry(self.scripts)
        late = await registry.beat_gateway("", self.settings.lease_ms, self.settings.orphan_grace_ms)
        was_grace = False
        for card in await registry.models():
            was_grace |= await self._reap_model(card.revision, late)
        if not was_grace:
            await registry.forget_gateways(late)

    async def _reap_model(self, model: str, late: list[str]) -> bool:
        """Pages until nothing is left; True when reaping was in its grace."""
        queue = RequestQueue(self.scripts, model, self.settings.retention_s, self.settings.lease_ms)
        for _ in range(_MAX_PAGES):
            reaped = await queue.reap(late, max_crashes=self.settings.max_crashes)
            self._count(model, reaped)
            if not reaped.has_more:
                return reaped.is_grace
        return True

    def _count(self, model: str, reaped: Reaped) -> None:
        for kind in ("requeued", "dead", "expired", "orphans"):
            number = int(getattr(reaped, kind))
            if number:
                self.on_reaped(kind, number)
                log.warning("reaped", extra={"model": model, "kind": kind, "number": number})
