"""Dead letters of one model: requests whose workers died, kept with their bodies until an operator decides.

A dead request has ended, and its client was told so. To retry is therefore a new, detached request with the same
body under a new id. That id follows from the letter alone, so a retry repeated, or asked for by two operators at
once, is one run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import msgspec

from shared import keys
from shared.durability import make_durable
from shared.errors import InvalidRequest, Overloaded, RequestNotFound, Unavailable
from shared.redis_client import Scripts
from shared.request_queue import Bounds, RequestQueue, Ticket
from shared.schemas import Request, decode_request, encode_request

_DURABLE_MS = 5000
_PAGE = 100  # made durable together


@dataclass(frozen=True, slots=True)
class Letter:
    """`worker` is the last one it took down, `crashes` how often it was blamed."""

    request_id: str
    model: str
    died_at_ms: int
    worker: str
    crashes: int
    tenant: str
    service_class: str


@dataclass(slots=True)
class Retries:
    """`retried`: letter -> the id it runs again under. `failed`: letter -> why it cannot be. `stopped`: why the rest
    was not tried, '' when all were."""

    retried: dict[str, str] = field(default_factory=dict[str, str])
    failed: dict[str, str] = field(default_factory=dict[str, str])
    stopped: str = ""

    def add(self, others: Retries) -> None:
        """Those of another model."""
        self.retried |= others.retried
        self.failed |= others.failed
        self.stopped = "; ".join(filter(None, (self.stopped, others.stopped)))


@dataclass(frozen=True, slots=True)
class DeadLetters:
    scripts: Scripts
    model: str
    retention_s: int
    lease_ms: int

    async def newest(self, count: int) -> list[Letter]:
        entries = await self.scripts.client.xrevrange(keys.dead(self.model), "+", "-", count)
        return [self._letter(entry, fields) for entry, fields in entries]

    async def find(self, request_id: str) -> Letter:
        """Raises RequestNotFound."""
        entry = await self.scripts.client.hget(keys.request(self.model, request_id), "letter")
        if entry is not None:
            at = entry.decode()
            for name, fields in await self.scripts.client.xrevrange(keys.dead(self.model), at, at, 1):
                return self._letter(name, fields)
        raise _no_letter(request_id)

    async def body(self, letter: Letter) -> Request:
        """What was asked. Raises RequestNotFound when it is gone, InvalidRequest when this version cannot read it."""
        raw = await self.scripts.client.get(keys.body(self.model, letter.request_id))
        if raw is None:
            raise RequestNotFound(f"the body of dead letter {letter.request_id} is gone", code="dead_letter_not_found")
        try:
            return decode_request(raw)
        except ValueError as error:
            raise InvalidRequest(f"dead letter {letter.request_id}: {error}") from error

    async def retry(self, request_id: str, by: str, bounds: Bounds) -> str:
        """The id it runs again under. Raises RequestNotFound, Overloaded, or Unavailable (not durable in time)."""
        new_id = await self._admit(await self.find(request_id), bounds)
        await self._replace({request_id: new_id}, by)
        return new_id

    async def retry_many(self, letters: Sequence[Letter], by: str, bounds: Bounds) -> Retries:
        """As `retry` for each, in this order, until the queue has no more room; a repeat goes on where it stopped."""
        retries = Retries()
        for start in range(0, len(letters), _PAGE):
            if not retries.stopped:
                await self._retry_page(letters[start : start + _PAGE], by, bounds, retries)
        return retries

    async def drop(self, request_id: str, by: str, why: str) -> None:
        """Raises RequestNotFound."""
        if not await self._drop(request_id, "dropped", why, by):
            raise _no_letter(request_id)

    async def _retry_page(self, page: Sequence[Letter], by: str, bounds: Bounds, retries: Retries) -> None:
        again: dict[str, str] = {}
        for letter in page:
            try:
                again[letter.request_id] = await self._admit(letter, bounds)
            except (RequestNotFound, InvalidRequest) as error:
                retries.failed[letter.request_id] = error.message
            except Overloaded as error:
                retries.stopped = error.message
                break
        try:
            await self._replace(again, by)
            retries.retried |= again
        except Unavailable as error:
            retries.stopped = error.message

    async def _admit(self, letter: Letter, bounds: Bounds) -> str:
        """The new id, in the queue, however often this is repeated; the letter stays."""
        request = msgspec.structs.replace(await self.body(letter), request_id=_retry_id(letter))
        queue = RequestQueue(self.scripts, self.model, self.retention_s, self.lease_ms)
        ticket = await self._ticket(request, letter.request_id)
        admitted = await queue.admit(ticket, encode_request(request), bounds, gateway="")
        if admitted.decision not in ("accepted", "duplicate"):
            figures = " of ".join(admitted.detail[:2])
            raise Overloaded(f"the queue has no room for it now: {admitted.decision} {figures}", retry_after_s=1.0)
        return request.request_id

    async def _replace(self, again: Mapping[str, str], by: str) -> None:
        """Letters go for the runs that were admitted: they are what is left of them until those cannot be lost."""
        if again:
            await make_durable(self.scripts.client, self.model, _DURABLE_MS)
        for request_id, new_id in again.items():
            await self._drop(request_id, "retried", new_id, by)

    async def _drop(self, request_id: str, action: str, detail: str, by: str) -> bool:
        arguments = (request_id, self.retention_s, action, detail, by)
        return (await self.scripts.run("dead_drop", keys.counts(self.model), *arguments))[0] == b"dropped"

    async def _ticket(self, request: Request, died: str) -> Ticket:
        """As `died` was admitted, but detached and without a deadline: nobody waits for it."""
        client = self.scripts.client
        weight = await client.hget(keys.tenant(self.model, request.tenant), "weight")
        view = await client.hget(keys.request(self.model, died), "view")
        return Ticket(
            request_id=request.request_id,
            service_class=request.service_class.value,
            tenant=request.tenant,
            prompt_tokens=len(request.prompt_ids),
            max_tokens=request.params.max_tokens,
            n=request.params.n,
            is_detached=True,
            tenant_weight=float(weight or 1),
            view=(view or b"").decode(),
        )

    def _letter(self, entry: bytes, fields: dict[bytes, bytes]) -> Letter:
        told: dict[str, Any] = {name.decode(): value.decode() for name, value in fields.items()}
        return Letter(
            request_id=told["id"],
            model=self.model,
            died_at_ms=int(entry.partition(b"-")[0]),
            worker=told["worker"],
            crashes=int(told["crashes"]),
            tenant=unquote(told["tenant"]),
            service_class=told["class"],
        )


def _retry_id(letter: Letter) -> str:
    """Like every request id 12 digits of time and 20 more; here the time it died, and a digest of the old id."""
    digest = hashlib.sha1(letter.request_id.encode(), usedforsecurity=False).hexdigest()
    return f"{letter.died_at_ms:012x}{digest[:20]}"


def _no_letter(request_id: str) -> RequestNotFound:
    return RequestNotFound(
        f"no dead letter {request_id} (they are kept for a day, and the newest 1,000)", code="dead_letter_not_found"
    )
