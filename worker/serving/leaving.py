"""How a registration ends in order: what runs ends by a deadline, the rest goes back half done, then it unregisters."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from shared.redis_client import AWAY
from shared.request_queue import RequestQueue
from worker.holdings import Holdings, Settlement
from worker.publisher import Publisher
from worker.serving.host import RETRY_S, first_of
from worker.shares import Share

log = logging.getLogger(__name__)


class Leaving:
    """`drain_now` set: everything goes back at once."""

    def __init__(
        self, queue: RequestQueue, share: Share, holdings: Holdings, publisher: Publisher, drain_now: asyncio.Event
    ) -> None:
        self._queue = queue
        self._share = share
        self._holdings = holdings
        self._publisher = publisher
        self._drain_now = drain_now

    async def finish_or_give_back(self, drain_timeout_s: float, *tasks: asyncio.Future[None]) -> None:
        """Let what runs end until the deadline; what is left then goes back, half done."""
        log.info("draining", extra={"model": self._queue.model, "num_held": len(self._holdings)})
        loop = asyncio.get_running_loop()
        deadline = loop.time() + drain_timeout_s
        hurry = asyncio.create_task(self._drain_now.wait())
        while len(self._holdings) and not hurry.done() and loop.time() < deadline:
            await first_of(hurry, *tasks, timeout_s=0.05)
        hurry.cancel()
        self._share.pause(is_paused=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._publisher.flush(), 1.0)
        for held in self._holdings:
            log.info("releasing", extra={"request_id": held.request_id})
            with contextlib.suppress(*AWAY):  # unregistering gives back whatever is left
                await self._holdings.settle(held.request_id, held.owner, Settlement.RELEASED)

    async def unregister(self, identity: tuple[str, str], lease_ms: int) -> None:
        """Tries as long as a lease lives: after that others have taken back what was held."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + lease_ms / 1000
        while loop.time() < give_up:
            try:
                await self._queue.unregister(*identity)
                log.info("worker_drained", extra={"worker": identity[0]})
                return
            except AWAY as error:
                log.warning("unregister_failed", extra={"worker": identity[0], "error": str(error)})
                await asyncio.sleep(RETRY_S)
