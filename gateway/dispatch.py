"""Dispatcher: submit a request to the queue, follow its frames, cancel it.

The gateway hears a request before it is admitted, so nothing of it can be missed. Leaving `follow` before the
end detaches, and the last one to leave cancels (attendance.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

from redis.exceptions import OutOfMemoryError, RedisError

from gateway.admission import mark_of, max_ahead, refusal, within_share
from gateway.attendance import Attendance
from gateway.fanout import Fanout
from gateway.http.options import AdmissionOptions
from gateway.lookup import Found, Lookup, Place
from gateway.models.catalogue import Catalogue
from gateway.subscription import Subscription
from shared import faults
from shared.config import GatewaySettings
from shared.durability import Durability, make_durable
from shared.errors import HeadraceError, RequestNotFound, Unavailable
from shared.observability import GatewayMetrics
from shared.redis_client import AWAY, Scripts
from shared.registry import RequestRecord
from shared.request_queue import Admitted, Bounds, RequestQueue, Ticket
from shared.schemas import EventFrame, Frame, Request, ServiceClass, encode_request
from shared.text.prefixes import NO_PREFIXES, Prefixes, prefixes_of

_RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a submitted request is: under its own id, or under that of the run its idempotency key has.

    `place` is None for one that was joined; `durability` is that of a detached one.
    """

    request_id: str
    model: str
    place: Place | None = None
    durability: Durability | None = None


class Dispatcher:
    """One a gateway process."""

    def __init__(
        self, settings: GatewaySettings, scripts: Scripts, gateway: str, fanout: Fanout, catalogue: Catalogue,
        metrics: GatewayMetrics,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._scripts = scripts
        self._gateway = gateway
        self._fanout = fanout
        self._catalogue = catalogue
        self._metrics = metrics
        self._bounds = Bounds(settings.max_waiting, settings.max_waiting_tokens, settings.max_waiting_bytes)
        self._attendance = Attendance(settings, scripts, gateway, fanout, metrics)
        self._lookup = Lookup(settings, scripts, catalogue)
        self._class_weights = {
            ServiceClass.PRIORITY: settings.class_weight_priority,
            ServiceClass.DEFAULT: settings.class_weight_default,
            ServiceClass.FLEX: settings.class_weight_flex,
            ServiceClass.BATCH: settings.class_weight_batch,
        }

    async def submit(self, request: Request, options: AdmissionOptions) -> Placed:
        """Accepted when this returns, and to be followed. Raises Overloaded or Unavailable: nothing is queued then.

        A request whose idempotency key has a run joins it; IdempotencyConflict when that had another body.
        """
        ticket = self._ticket(request, options)
        if ticket.idempotency_key:
            claimed = await self._lookup.claimed(ticket, request.model, is_alone=options.has_alternatives)
            if isinstance(claimed, Found):
                return await self._joined(claimed)
            ticket = claimed
        subscription = Subscription(request.model, ticket, encode_request(request))
        self._fanout.add(subscription)
        admission = self._attendance.spawn(self._admit(subscription, self._bounds_for(subscription, options)))
        try:
            admitted = await asyncio.shield(admission)
        except BaseException:
            self._attendance.spawn(self._attendance.abandon(subscription, admission))
            raise
        self._metrics.admission_decisions.labels(request.model, ticket.service_class, admitted.decision).inc()
        if admitted.decision == "same":
            self._fanout.remove(request.request_id)
            return await self.join(admitted.detail[0], request.tenant)
        error = refusal(admitted, ticket.drain_per_s)
        if error is not None:
            self._fanout.remove(request.request_id)
            if ticket.idempotency_key and options.has_alternatives:
                await self._lookup.give_up_claim(ticket, request.model)
            raise error
        if options.fallback:
            self._metrics.fallbacks.labels(request.model, options.fallback).inc()
        self._attendance.begin(subscription)
        return await self._placed(subscription, admitted, is_kept_elsewhere=options.is_kept_elsewhere)

    async def withdraw(self, request_id: str) -> None:
        """End what was submitted here and is not followed yet: what belongs to it was refused."""
        subscription = self._fanout.get(request_id)
        if subscription is not None:
            await self._attendance.withdraw(subscription)

    async def join(self, request_id: str, tenant: str) -> Placed:
        """Another client follows a request, from its beginning. Raises RequestNotFound, Unavailable."""
        return await self._joined(await self._lookup.find(request_id, tenant))

    @asynccontextmanager
    async def follow(self, request_id: str) -> AsyncGenerator[AsyncGenerator[list[Frame]]]:
        """The frames of a request that was submitted or joined, from its first to its EndFrame, once and in order.

        Raises RequestNotFound, and while iterating StreamContradiction.
        """
        subscription = self._fanout.get(request_id)
        if subscription is None:
            raise RequestNotFound(f"request {request_id} is not followed here")
        frames = self._attendance.frames(subscription)
        try:
            yield frames
        finally:
            await frames.aclose()
            self._attendance.leave(subscription)

    async def find(self, request_id: str, tenant: str) -> Found:
        """Raises RequestNotFound, also for another tenant's, and Unavailable."""
        return await self._lookup.find(request_id, tenant)

    async def record(self, placed: Placed) -> RequestRecord:
        """Raises RequestNotFound, Unavailable."""
        return await self._lookup.record(placed.model, placed.request_id)

    async def events(self, found: Found) -> list[EventFrame]:
        """What happened to a request so far. Raises Unavailable."""
        return await self._lookup.events(found)

    async def journal(self, placed: Placed) -> list[Frame]:
        """All of it so far; nothing when it is not known any more. Raises Unavailable."""
        return await self._lookup.journal(placed.model, placed.request_id)

    async def place(self, found: Found) -> Place | None:
        """Where a request waits now; None when it does not."""
        return await self._lookup.place(found.model, found.record.request_id)

    async def place_here(self, request_id: str) -> Place | None:
        """Where a request that is followed here waits now; None when it does not, and costs nothing then."""
        s = self._fanout.get(request_id)
        return None if s is None or s.is_running else await self._lookup.place(s.model, request_id)

    async def cancel(self, request_id: str, tenant: str) -> str:
        """The state it has ended in. Raises RequestNotFound, Unavailable."""
        found = await self._lookup.find(request_id, tenant)
        try:
            return await self._attendance.finish(self._queue(found.model).cancel(request_id))
        except AWAY as error:
            raise Unavailable(f"the queue is not reachable: {error}") from error

    async def cancel_run(self, tenant: str, key_hash: str, digest: str) -> None:
        """End the run that an idempotency key has, if one goes on. Raises IdempotencyConflict, Unavailable."""
        found = await self._lookup.run_elsewhere(tenant, key_hash, digest, "")
        if found is not None and not found.record.is_done:
            await self.cancel(found.record.request_id, tenant)

    async def stop(self) -> None:
        """Waits for what runs in the background. What outlives its clients goes on without this witness."""
        await self._attendance.stop()

    def _ticket(self, request: Request, options: AdmissionOptions) -> Ticket:
        deadlines = (options.start_deadline_ms, options.deadline_ms)
        drain_per_s = self._catalogue.drain_per_s(request.model)
        return Ticket(
            request_id=request.request_id,
            service_class=request.service_class.value,
            tenant=request.tenant,
            prompt_tokens=len(request.prompt_ids),
            max_tokens=request.params.max_tokens,
            n=request.params.n,
            start_deadline_ms=options.start_deadline_ms,
            deadline_ms=options.deadline_ms,
            is_detached=options.detached,
            traceparent=options.traceparent,
            idempotency_key=options.key_hash,
            body_digest=options.body_digest,
            tenant_weight=options.tenant.weight,
            view=options.view,
            class_weight=self._catalogue.routes.class_weight(
                request.model, request.service_class, self._class_weights[request.service_class]
            ),
            max_ahead=max_ahead(deadlines, drain_per_s),
            mark=_mark_of(request, options),
            drain_per_s=drain_per_s,
            lane_ms=self._settings.lane_ms,
            prefixes=self._prefixes(request),
        )

    def _prefixes(self, request: Request) -> Prefixes:
        """None where nobody is to be preferred, or workers keep none."""
        scope = self._settings.prefix_cache
        if self._settings.lane_ms == 0 or scope == "off":
            return NO_PREFIXES
        return prefixes_of(request.prompt_ids, request.tenant if scope == "tenant" else "")

    def _bounds_for(self, s: Subscription, options: AdmissionOptions) -> Bounds:
        bounds = replace(
            self._catalogue.routes.bounds(s.model, self._bounds), tenant_max_waiting=options.tenant.max_waiting
        )
        if s.ticket.service_class != ServiceClass.BATCH:
            return bounds
        return within_share(bounds, self._settings.batch_queue_share, s.ticket.prompt_tokens, len(s.body))

    async def _placed(self, s: Subscription, admitted: Admitted, *, is_kept_elsewhere: bool) -> Placed:
        """A detached request is accepted only when it is safe without a witness, where the server can do that."""
        durability: Durability | None = None
        if s.ticket.is_detached and not is_kept_elsewhere:
            try:
                timeout_ms = round(self._settings.redis_timeout_s * 800)
                durability = await make_durable(self._scripts.client, s.model, timeout_ms)
            except (HeadraceError, *AWAY) as error:
                await self._attendance.finish(self._take_back(s))
                raise Unavailable(f"the request could not be made durable: {error}") from error
        ahead = int(admitted.detail[1]) if len(admitted.detail) > 1 else 0
        return Placed(s.request_id, s.model, self._lookup.place_behind(s.model, ahead), durability)

    async def _joined(self, found: Found) -> Placed:
        await self._attendance.join(found)
        return Placed(found.record.request_id, found.model)

    async def _take_back(self, s: Subscription) -> None:
        """Admitted, and refused all the same."""
        self._fanout.remove(s.request_id)
        self._metrics.requests_in_flight.labels(s.model).dec()
        with suppress(RedisError, OSError):
            await self._queue(s.model).cancel(s.request_id)

    async def _admit(self, s: Subscription, bounds: Bounds) -> Admitted:
        """Repeats while the server is away, as long as one timeout: admission is idempotent."""
        deadline = time.monotonic() + self._settings.redis_timeout_s
        while True:
            try:
                await self._fanout.subscribe(s.model)
                await faults.hit("before_admit")
                admitted = await self._queue(s.model).admit(s.ticket, s.body, bounds, gateway=self._gateway)
                await faults.hit("after_admit")
                return admitted
            except OutOfMemoryError as error:
                raise Unavailable("the queue's memory is full", retry_after_s=5.0) from error
            except (*AWAY, TimeoutError) as error:
                if time.monotonic() > deadline:
                    raise Unavailable(f"the queue is not reachable: {error}") from error
                await asyncio.sleep(_RETRY_S)

    def _queue(self, model: str) -> RequestQueue:
        return RequestQueue(self._scripts, model, self._settings.retention_s, self._settings.lease_ms)


def _mark_of(request: Request, options: AdmissionOptions) -> str:
    """No place is kept for a line of a batch, which comes back all the time, nor where another model is asked next."""
    is_kept = request.service_class is not ServiceClass.BATCH and not options.is_tentative
    return mark_of(request, options.key_hash) if is_kept else ""
