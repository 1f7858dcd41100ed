"""Ends what nobody ended: responses whose gateway died, and whose client never asked again.

Every gateway looks for unfinished rows whose lease has passed, leases some, and compares them with the queue. What runs
is left alone until the lease has passed again. What the queue does not know, twice in a row, is lost: a gateway may be
bringing it back meanwhile, or not have admitted it yet.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from gateway.dispatch import Placed
from gateway.responses.desk import Queue, ResponseDesk, now_ms
from gateway.responses.reading import LOST
from gateway.store.responses import ResponseRows, StoredResponse
from shared.errors import RequestNotFound, Unavailable
from shared.servers.tasks import end_tasks

log = logging.getLogger(__name__)
MAX_ROWS = 100


class Finisher:
    """One a gateway process, between `start` and `stop`."""

    def __init__(self, rows: ResponseRows, desk: ResponseDesk, queue: Queue, lease_ms: int) -> None:
        self._rows = rows
        self._desk = desk
        self._queue = queue
        self._lease_ms = lease_ms
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            await end_tasks(self._task)

    async def look(self) -> int:
        """How many it has ended. Raises Unavailable."""
        now = now_ms()
        num_ended = 0
        for stored in await self._rows.lease(now, now + self._lease_ms, MAX_ROWS):
            num_ended += (await self._desk.brought_up_to_date(stored)).is_finished or await self._is_lost(stored)
        return num_ended

    async def _is_lost(self, stored: StoredResponse) -> bool:
        try:
            await self._queue.record(Placed(stored.request_id, stored.revision))
        except RequestNotFound:
            if stored.num_misses == 0:
                await self._rows.miss(stored.id)
                return False
            await self._rows.end(stored.id, "failed", LOST, now_ms())
            log.warning("response_lost", extra={"response_id": stored.id})
            return True
        return False

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._lease_ms / 2000)
            with suppress(Unavailable):
                num_ended = await self.look()
                if num_ended:
                    log.info("responses_finished", extra={"num_responses": num_ended})
