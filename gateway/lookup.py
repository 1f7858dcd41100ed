"""Finding requests by their id or idempotency key, in whatever model's queue they are, and saying where they stand.

Reads only. A request of another tenant is not found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from redis.exceptions import RedisError

from gateway.admission import eta_ms
from gateway.catalogue import Catalogue
from shared import keys
from shared.config import GatewaySettings
from shared.errors import IdempotencyConflict, RequestNotFound, Unavailable
from shared.redis_client import AWAY, Scripts
from shared.registry import RequestRecord, read_record
from shared.request_queue import RequestQueue
from shared.schemas import EventFrame, State, decode_frames

# A run that ended so has no result to be had: its key is free for another.
RUN_ANEW = (State.CANCELLED, State.FAILED, State.EXPIRED)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Found:
    """A request and the model revision in whose queue it is."""

    model: str
    record: RequestRecord


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request waits: 1 is next. `eta_ms` is None while no rate is known."""

    position: int
    eta_ms: int | None


class Lookup:
    def __init__(self, settings: GatewaySettings, scripts: Scripts, catalogue: Catalogue) -> None:
        self._settings = settings
        self._scripts = scripts
        self._catalogue = catalogue

    async def find(self, request_id: str, tenant: str) -> Found:
        """Raises RequestNotFound, also for a request of another tenant, and Unavailable."""
        models = self._catalogue.revisions()
        client = self._scripts.client
        records = await _answered(asyncio.gather(*(read_record(client, model, request_id) for model in models)))
        for model, record in zip(models, records, strict=True):
            if record is not None and record.tenant == keys.escape(tenant):
                return Found(model, record)
        raise RequestNotFound(f"request {request_id} is not known (any more)")

    async def run_elsewhere(self, tenant: str, key_hash: str, digest: str, model: str) -> Found | None:
        """The run an idempotency key has in another queue than this model's, where `admit` does not look.

        Raises IdempotencyConflict when it belongs to another body.
        """
        others = [other for other in self._catalogue.revisions() if other != model]
        wanted = [self._scripts.client.get(keys.idempotency(other, tenant, key_hash)) for other in others]
        for raw in await _answered(asyncio.gather(*wanted)):
            if raw is None:
                continue
            request_id, _, known_digest = raw.decode().partition(" ")
            try:
                found = await self.find(request_id, tenant)
            except RequestNotFound:
                continue
            if known_digest != digest:
                raise IdempotencyConflict(
                    "the idempotency key belongs to a request with another body", param="idempotency-key"
                )
            if found.record.state not in RUN_ANEW:
                return found
        return None

    async def record(self, model: str, request_id: str) -> RequestRecord:
        """Raises RequestNotFound, Unavailable."""
        record = await _answered(read_record(self._scripts.client, model, request_id))
        if record is None:
            raise RequestNotFound(f"request {request_id} is not known (any more)")
        return record

    async def events(self, found: Found) -> list[EventFrame]:
        """What happened to a request so far, from its journal."""
        model, request_id = found.model, found.record.request_id
        journal = await _answered(self._scripts.client.get(keys.journal(model, request_id)))
        return [frame for frame in decode_frames(journal or b"") if isinstance(frame, EventFrame)]

    async def place(self, model: str, request_id: str) -> Place | None:
        """None when it does not wait, or cannot be asked now."""
        queue = RequestQueue(self._scripts, model, self._settings.retention_s, self._settings.lease_ms)
        try:
            ahead = await queue.position(request_id)
        except (RedisError, OSError):
            return None
        return None if ahead is None else self.place_behind(model, ahead)

    def place_behind(self, model: str, ahead: int) -> Place:
        return Place(ahead + 1, eta_ms(ahead + 1, self._catalogue.drain_per_s(model)))


async def _answered(call: Awaitable[T]) -> T:
    try:
        return await call
    except AWAY as error:
        raise Unavailable(f"the queue is not reachable: {error}") from error
