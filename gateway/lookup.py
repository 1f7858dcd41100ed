"""Finding requests by their id or idempotency key, in whatever model's queue they are, and saying where they stand.

Reads only, but for the claim that makes a key one model's before its request is admitted. A request of another tenant
is not found.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from redis.exceptions import OutOfMemoryError, RedisError

from gateway.admission import eta_ms
from gateway.models.catalogue import Catalogue
from shared import keys
from shared.access.claims import claim_key
from shared.config import GatewaySettings
from shared.errors import IdempotencyConflict, RequestNotFound, Unavailable
from shared.redis_client import AWAY, Scripts
from shared.registry import RequestRecord, read_record
from shared.request_queue import RequestQueue, Ticket
from shared.schemas import EventFrame, Frame, State, decode_frames

# A run that ended so has no result to be had: its key is free for another.
RUN_ANEW = (State.CANCELLED, State.FAILED, State.EXPIRED)
_RETRY_S = 0.1
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

    async def claimed(self, ticket: Ticket, model: str, *, is_alone: bool = False) -> Ticket | Found:
        """A ticket whose idempotency key is this model's, to be admitted under; or the run the key has elsewhere.

        `is_alone`: the claim is this one request's, not the model's, since another with the key may be led elsewhere.
        Waits, as long as one timeout, for a request with the same body that is on its way into another model's queue.
        Raises IdempotencyConflict, Unavailable.
        """
        about = (ticket.tenant, ticket.idempotency_key, ticket.body_digest)
        claimant = _claimant(ticket, model) if is_alone else model
        deadline = time.monotonic() + self._settings.redis_timeout_s
        while True:
            claim = await _answered(
                claim_key(self._scripts, ticket.tenant, ticket.idempotency_key, claimant, ticket.body_digest)
            )
            found = await self.run_elsewhere(*about, model, beside=claim.model.partition("\n")[0])
            if found is not None:
                return found
            if claim.until_ms:
                return replace(ticket, claimed_until_ms=claim.until_ms)
            if claim.body_digest != ticket.body_digest:
                raise _conflict()
            if time.monotonic() > deadline:
                raise Unavailable("a request with this idempotency key is on its way into another queue")
            await asyncio.sleep(_RETRY_S)

    async def give_up_claim(self, ticket: Ticket, model: str) -> None:
        """Of a request that was refused: its key may be claimed for another model now. Else the claim runs out."""
        with suppress(RedisError, OSError):
            about = (ticket.tenant, ticket.idempotency_key, _claimant(ticket, model), ticket.body_digest)
            await claim_key(self._scripts, *about, keep_ms=0)

    async def run_elsewhere(
        self, tenant: str, key_hash: str, digest: str, model: str, *, beside: str = ""
    ) -> Found | None:
        """The run an idempotency key has in another queue than this model's, where `admit` does not look.

        `beside`: a model to look at though it may not be known here yet. Raises IdempotencyConflict when the key
        belongs to another body.
        """
        others = {*self._catalogue.revisions(), beside} - {model, ""}
        runs = await _answered(asyncio.gather(*(self._run_of(tenant, key_hash, other) for other in others)))
        for found, known_digest in (run for run in runs if run is not None):
            if known_digest != digest:
                raise _conflict()
            if found.record.state not in RUN_ANEW:
                return found
        return None

    async def _run_of(self, tenant: str, key_hash: str, model: str) -> tuple[Found, str] | None:
        """The run a key has in this queue, and the digest of its body."""
        raw = await self._scripts.client.get(keys.idempotency(model, tenant, key_hash))
        if raw is None:
            return None
        request_id, _, digest = raw.decode().partition(" ")
        record = await read_record(self._scripts.client, model, request_id)
        return None if record is None else (Found(model, record), digest)

    async def record(self, model: str, request_id: str) -> RequestRecord:
        """Raises RequestNotFound, Unavailable."""
        record = await _answered(read_record(self._scripts.client, model, request_id))
        if record is None:
            raise RequestNotFound(f"request {request_id} is not known (any more)")
        return record

    async def events(self, found: Found) -> list[EventFrame]:
        """What happened to a request so far, from its journal."""
        frames = await self.journal(found.model, found.record.request_id)
        return [frame for frame in frames if isinstance(frame, EventFrame)]

    async def journal(self, model: str, request_id: str) -> list[Frame]:
        """All of a request so far; nothing when it is not known (any more). Raises Unavailable."""
        return decode_frames(await _answered(self._scripts.client.get(keys.journal(model, request_id))) or b"")

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


def _claimant(ticket: Ticket, model: str) -> str:
    return f"{model}\n{ticket.request_id}"


def _conflict() -> IdempotencyConflict:
    return IdempotencyConflict("the idempotency key belongs to a request with another body", param="idempotency-key")


async def _answered(call: Awaitable[T]) -> T:
    try:
        return await call
    except OutOfMemoryError as error:
        raise Unavailable("the queue's memory is full", retry_after_s=5.0) from error
    except AWAY as error:
        raise Unavailable(f"the queue is not reachable: {error}") from error
