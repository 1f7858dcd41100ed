"""Heartbeat: renews the lease while the engine's loop advances, and compares books with Redis.

Owned but unknown here: the reply of a take was lost, so it goes back. Held but not owned: somebody else has it.
A model card that Redis lost is published again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import orjson

from shared import faults
from shared.config import RedisSettings
from shared.redis_client import AWAY
from shared.request_queue import Heartbeat, RequestQueue
from worker.consumer import Consumer
from worker.holdings import Holdings, Settlement
from worker.publisher import Publisher
from worker.shares import Share

log = logging.getLogger(__name__)
_PUBLISH_EVERY = 5


class Maintenance:
    """`run` as a task. Raises LeaseLost."""

    def __init__(
        self, queue: RequestQueue, engine: Share, holdings: Holdings, consumer: Consumer, publisher: Publisher,
        identity: tuple[str, str],
    ) -> None:  # fmt: skip
        self._queue = queue
        self._engine = engine
        self._holdings = holdings
        self._consumer = consumer
        self._publisher = publisher
        self._identity = identity
        self.was_stalled = False
        self.more_figures: Callable[[], dict[str, float]] = dict[str, float]

    async def run(self, settings: RedisSettings, republish: Callable[[], Awaitable[None]]) -> None:
        beats = 0
        while True:
            started = time.monotonic()
            try:
                await self._beat(settings)
                beats += 1
                if beats % _PUBLISH_EVERY == 0:
                    await republish()
            except AWAY as error:
                log.warning("heartbeat_failed", extra={"error": str(error)})
            await asyncio.sleep(max(0.0, settings.heartbeat_ms / 1000 - (time.monotonic() - started)))

    async def _beat(self, settings: RedisSettings) -> None:
        stalled_s = self._engine.stalled_s()
        if stalled_s > settings.lease_ms / 1000:
            self.was_stalled = True
            log.error("engine_stalled", extra={"stalled_s": round(stalled_s, 1)})
            return
        load = orjson.dumps(self._engine.load().figures() | self.more_figures())
        await faults.hit("heartbeat")
        async with self._consumer.books:
            beat = await self._queue.heartbeat(*self._identity, load)
            await self._compare(beat)
        await self._publisher.obey(beat.commands)

    async def _compare(self, beat: Heartbeat) -> None:
        for request_id, (owner, gateways) in beat.owned.items():
            held = self._holdings.get(request_id)
            if held is None or held.owner != owner:
                log.warning("release_unknown", extra={"request_id": request_id})
                await self._holdings.settle(request_id, owner, Settlement.UNKNOWN)
            else:
                held.gateways |= set(gateways)
        for held in self._holdings:
            owned = beat.owned.get(held.request_id)
            # A final emit may be under way: then Redis has settled it and its reply is about to say so.
            if (owned is None or owned[0] != held.owner) and not held.final:
                await self._holdings.settle(held.request_id, held.owner, Settlement.FENCED)
