"""One line, asked until it has its answer: what a refusal means, how long to hold back, when it is given up.

A line goes to its endpoint as a client's request would (http/inside.py), under a key that makes every repeat the same
run. What may succeed later is asked again; what cannot is the line's answer.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
import orjson

from gateway.batches.lines import Line, answer_line
from gateway.batches.means import Means
from gateway.http.errors import error_payload, status_and_type
from gateway.http.inside import Inside, InsideReply, call_inside
from gateway.store.batch_rows import StoredBatch
from gateway.store.batch_runs import Answer
from shared.access.entries import Tenant
from shared.errors import HeadraceError, PermissionDenied
from shared.schemas import ServiceClass

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
# Of an error: it says nothing of the line, only of the moment.
_LATER_STATUS = frozenset({429, 503})
_LATER_CODES = frozenset({"model_not_found", "request_not_found", "stream_contradiction"})
_CANCELLED, _TOO_LATE = 499, 504


@dataclass(slots=True)
class Visit:
    """A line on its way. `placed` is set when it is in the queue, `request_id` its name there, or when it is over."""

    line: Line
    inside: Inside | None = None
    placed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def request_id(self) -> str:
        return self.inside.request_id if self.inside is not None else ""


@dataclass(slots=True)
class Asker:
    """Of one batch. `stopping`: no line is asked any more. `leaving`: those that are asked are left alone, too."""

    means: Means
    batch: StoredBatch
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    leaving: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, visit: Visit) -> Answer | None:
        """None: it has none, as asking was stopped."""
        pause_s = _FIRST_PAUSE_S
        while not self.stopping.is_set():
            reply = await self._ask(visit)
            if reply is None:
                continue  # left; or the client that we are was cut off, and asks again
            code = _code_of(reply)
            if reply.status in _LATER_STATUS or code in _LATER_CODES:
                self.means.metrics.batch_refusals.labels(code or str(reply.status)).inc()
                await self._pause(min(_told_s(reply), pause_s))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            elif self._is_of_the_end(reply):
                return None
            else:
                return self._answer(visit, reply)
        return None

    async def _ask(self, visit: Visit) -> InsideReply | None:
        try:
            tenant = self._tenant()
        except HeadraceError as error:
            return InsideReply(status_and_type(error)[0], {}, error_payload(error))
        visit.inside = Inside(
            # Its class is asked for once, here: a line cannot ask for another one.
            tenant=msgspec.structs.replace(tenant, service_classes=()),
            service_class=ServiceClass.BATCH,
            deadline_ms=max(1, self.batch.window_ends_ms - _now_ms()),
            key_hash=visit.line.key_hash(self.batch.id),
            body_digest=visit.line.digest,
            placed=visit.placed,
        )
        return await call_inside(
            self.means.around.app, self.batch.endpoint, visit.line.body, visit.inside, self.leaving
        )

    def _tenant(self) -> Tenant:
        tenant = self.means.around.tenant_of(self.batch.key_digest)
        require_batches(tenant)
        return tenant

    def _is_of_the_end(self, reply: InsideReply) -> bool:
        """Cancelled because the batch was, or expired with it."""
        is_late = reply.status == _TOO_LATE and _now_ms() >= self.batch.window_ends_ms
        return is_late or (reply.status == _CANCELLED and self.stopping.is_set())

    def _answer(self, visit: Visit, reply: InsideReply) -> Answer:
        is_ok = reply.status == 200
        self.means.metrics.batch_lines.labels("completed" if is_ok else "failed").inc()
        request_id = reply.headers.get("x-request-id", "")
        text = answer_line(self.batch.id, visit.line, reply.status, request_id, reply.body)
        return Answer(visit.line.number, is_ok, text)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self.stopping.wait(), seconds * random.uniform(0.75, 1.0))


def require_batches(tenant: Tenant) -> None:
    """Raises PermissionDenied for a key that may not use the class of batches."""
    if tenant.service_classes and ServiceClass.BATCH not in tenant.service_classes:
        allowed = ", ".join(tenant.service_classes)
        raise PermissionDenied(f"this API key may not use the service class 'batch'; allowed: {allowed}")


def _code_of(reply: InsideReply) -> str:
    """'' for no error."""
    if reply.status < 400:
        return ""
    try:
        return str(orjson.loads(reply.body)["error"]["code"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return ""


def _told_s(reply: InsideReply) -> float:
    try:
        return float(reply.headers["retry-after-ms"]) / 1000
    except (KeyError, ValueError):
        return _LONGEST_PAUSE_S


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
