"""Takes only what the engine has room for, and hands it over. The worker's way in.

Idle, it waits at its bell on a connection of its own; full, for room. Take and heartbeat exclude each other
(`books`): between the two a delivery whose reply is under way would look like one that was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable

import msgspec
from redis.exceptions import RedisError

from shared import faults, keys
from shared.redis_client import AWAY, Client
from shared.request_queue import Delivery, RequestQueue
from shared.schemas import Request, decode_frames, decode_request, prefixes_of
from worker.holdings import Holdings, Settlement
from worker.shares import Offer, Share

log = logging.getLogger(__name__)
BELL_S = 1.0
_RETRY_S = 0.2
_LATER_S = 0.05
_GIVEN_BACK_S = 0.5


class Consumer:
    """`run` until cancelled or quiet. Raises LeaseLost."""

    def __init__(
        self, queue: RequestQueue, bell: Client, engine: Share, holdings: Holdings, identity: tuple[str, str],
        on_delivery: Callable[[Delivery, Request], None],
    ) -> None:  # fmt: skip
        self._queue = queue
        self._bell = bell
        self._engine = engine
        self._holdings = holdings
        self._identity = identity
        self._on_delivery = on_delivery
        self._room = asyncio.Event()
        self.books = asyncio.Lock()
        self._is_quiet = False
        self._gave_back = False
        self.is_for_others: Callable[[], Awaitable[bool]] = _nobody_else

    def make_room(self) -> None:
        """Something ended: it may be worth to take again."""
        self._room.set()

    def quiet(self) -> None:
        """Take nothing more."""
        self._is_quiet = True
        self._room.set()

    async def run(self) -> None:
        while not self._is_quiet:
            try:
                num_waiting, num_taken = await self._take()
                if not num_taken:
                    await self._wait(num_waiting)
            except AWAY as error:
                log.warning("take_failed", extra={"error": str(error)})
                await asyncio.sleep(_RETRY_S)

    async def _take(self) -> tuple[int, int]:
        """How many wait still, and how many were taken."""
        self._room.clear()
        with self._engine.taking() as offer:
            num_waiting, num_taken = await self._take_of(offer)
        self._engine.note(offer, num_waiting)
        if self._gave_back:  # whoever can read it is to come first
            self._gave_back = False
            await asyncio.sleep(_GIVEN_BACK_S)
        return num_waiting, num_taken

    async def _take_of(self, offer: Offer) -> tuple[int, int]:
        is_stalled = self._engine.stalled_s() > self._queue.lease_ms / 2000
        if offer.slots == 0 or is_stalled:
            return 1, 0  # whether somebody waits does not matter now
        async with self.books:
            await faults.hit("take")
            taken = await self._queue.take(*self._identity, slots=offer.slots, room=offer.tokens)
            await faults.hit("after_take", taken)
            for delivery in taken.deliveries:
                await self._hand_over(delivery)
        return taken.num_waiting, len(taken.deliveries)

    async def _hand_over(self, delivery: Delivery) -> None:
        self._holdings.hold(delivery)
        try:
            request = decode_request(delivery.body)
            prefixes = prefixes_of(decode_frames(delivery.journal), request.params.n)
        except (ValueError, msgspec.DecodeError) as error:
            await self._cannot_read(delivery, str(error))
            return
        self._engine.add(request, prefixes, start_left_ms=delivery.start_left_ms, left_ms=delivery.left_ms)
        self._on_delivery(delivery, request)

    async def _cannot_read(self, delivery: Delivery, why: str) -> None:
        """A gateway newer than this worker wrote it: a worker that knows more gets it, without blame."""
        self._gave_back = await self.is_for_others()
        told = {"request_id": delivery.request_id, "why": why, "is_given_back": self._gave_back}
        log.error("request_not_understood", extra=told)
        if self._gave_back:
            await self._holdings.settle(delivery.request_id, delivery.owner, Settlement.RELEASED)
        else:
            self._engine.refuse(delivery.request_id, why)

    async def _wait(self, num_waiting: int) -> None:
        """Shortly, or for room, when somebody waits but not for us; for the bell when nobody waits."""
        if num_waiting:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._room.wait(), _LATER_S)
        else:
            await self._listen()

    async def _listen(self) -> None:
        try:
            bell = keys.bell(self._queue.model, self._identity[0])
            await self._bell.blpop([bell], timeout=BELL_S * random.uniform(0.7, 1.0))
        except RedisError as error:
            log.warning("bell_failed", extra={"error": str(error)})
            await asyncio.sleep(_RETRY_S)


async def _nobody_else() -> bool:
    return False
