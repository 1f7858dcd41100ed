"""Dispatcher: submit a request to the queue, follow its frames, cancel it.

The gateway hears a request before it is admitted, so nothing of it can be missed. Leaving `follow` before the
end detaches, and the last one to leave cancels. A command to Redis is never cut off half-way on a shared
connection: it is shielded, and finished in the background when its caller is gone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import TypeVar

from redis.exceptions import OutOfMemoryError, RedisError

from gateway.admission import refusal
from gateway.catalogue import Catalogue
from gateway.fanout import Fanout
from gateway.http.options import AdmissionOptions
from gateway.subscription import Subscription
from shared.config import GatewaySettings
from shared.errors import RequestNotFound, Unavailable
from shared.observability import GatewayMetrics
from shared.redis_client import AWAY, Scripts
from shared.request_queue import Admitted, Bounds, RequestQueue, Ticket
from shared.schemas import EndFrame, Frame, Request, TokensFrame, decode_frames, encode_request

log = logging.getLogger(__name__)
_RETRY_S = 0.1
_DETACH_TRIES = 50
T = TypeVar("T")


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
        self._tasks: set[asyncio.Task[object]] = set()

    async def submit(self, request: Request, options: AdmissionOptions) -> None:
        """Accepted when this returns. Raises Overloaded or Unavailable, and then nothing is queued."""
        ticket = Ticket(
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
        )
        subscription = Subscription(request.model, ticket, encode_request(request))
        self._fanout.add(subscription)
        admission = self._spawn(self._admit(subscription))
        try:
            admitted = await asyncio.shield(admission)
        except BaseException:
            self._spawn(self._abandon(subscription, admission))
            raise
        error = refusal(admitted, self._catalogue.drain_per_s(request.model))
        self._metrics.admission_decisions.labels(request.model, ticket.service_class, admitted.decision).inc()
        if error is not None:
            self._fanout.remove(request.request_id)
            raise error
        subscription.is_admitted = True
        self._metrics.requests_in_flight.labels(request.model).inc()

    @asynccontextmanager
    async def follow(self, request_id: str) -> AsyncGenerator[AsyncGenerator[list[Frame]]]:
        """The frames of a submitted request, from its first to its EndFrame, each once and in order.

        Raises RequestNotFound, and while iterating StreamContradiction.
        """
        subscription = self._fanout.get(request_id)
        if subscription is None:
            raise RequestNotFound(f"request {request_id} is not followed here")
        frames = self._frames(subscription)
        try:
            yield frames
        finally:
            await frames.aclose()
            self._metrics.requests_in_flight.labels(subscription.model).dec()
            self._leave(subscription)

    async def cancel(self, request_id: str) -> None:
        subscription = self._fanout.get(request_id)
        if subscription is None:
            raise RequestNotFound(f"request {request_id} is not followed here")
        await self._finish_in_background(self._queue(subscription.model).cancel(request_id))

    async def stop(self) -> None:
        """Waits for what runs in the background."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._settings.redis_timeout_s)

    async def _frames(self, s: Subscription) -> AsyncGenerator[list[Frame]]:
        cursor = 0
        has_tokens = False
        while True:
            if len(s.journal) > cursor:
                frames = decode_frames(bytes(s.journal[cursor:]))
                cursor = len(s.journal)
                if not has_tokens and any(isinstance(frame, TokensFrame) for frame in frames):
                    has_tokens = True
                    self._observe_first_token(s)
                yield frames
                if isinstance(frames[-1], EndFrame):
                    self._observe_end(s, frames[-1])
                    return
            elif s.error is not None:
                raise s.error
            else:
                s.changed.clear()
                await s.changed.wait()

    async def _admit(self, s: Subscription) -> Admitted:
        """Repeats while the server is away, as long as one timeout: admission is idempotent."""
        deadline = time.monotonic() + self._settings.redis_timeout_s
        while True:
            try:
                await self._fanout.subscribe(s.model)
                return await self._queue(s.model).admit(s.ticket, s.body, self._bounds, gateway=self._gateway)
            except OutOfMemoryError as error:
                raise Unavailable("the queue's memory is full", retry_after_s=5.0) from error
            except (*AWAY, TimeoutError) as error:
                if time.monotonic() > deadline:
                    raise Unavailable(f"the queue is not reachable: {error}") from error
                await asyncio.sleep(_RETRY_S)

    async def _abandon(self, s: Subscription, admission: asyncio.Task[Admitted]) -> None:
        """Nobody waits for this request any more, and it may be in the queue, or be about to be."""
        await asyncio.wait([admission])
        self._leave(s)

    def _leave(self, s: Subscription) -> None:
        """Forget a request here; if it has not ended, tell the queue, in the background and until it is heard."""
        self._fanout.remove(s.request_id)
        if s.is_done and s.error is None:
            return
        self._spawn(self._detach(s))

    async def _detach(self, s: Subscription) -> None:
        for _ in range(_DETACH_TRIES):
            try:
                how = await self._queue(s.model).detach(s.request_id, self._gateway)
                log.info("request_left", extra={"request_id": s.request_id, "result": how})
                return
            except (RedisError, OSError):
                await asyncio.sleep(_RETRY_S * 5)

    async def _finish_in_background(self, call: Awaitable[T]) -> T:
        return await asyncio.shield(self._spawn(call))

    def _spawn(self, call: Awaitable[T]) -> asyncio.Task[T]:
        async def run() -> T:
            return await call

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _queue(self, model: str) -> RequestQueue:
        return RequestQueue(self._scripts, model, self._settings.retention_s, self._settings.lease_ms)

    def _observe_first_token(self, s: Subscription) -> None:
        seconds = time.monotonic() - s.received_at
        self._metrics.time_to_first_token.labels(s.model, s.ticket.service_class).observe(seconds)

    def _observe_end(self, s: Subscription, end: EndFrame) -> None:
        seconds = time.monotonic() - s.received_at
        labels = (s.model, s.ticket.service_class, end.outcome.value)
        self._metrics.requests.labels(*labels).inc()
        self._metrics.request_duration.labels(*labels).observe(seconds)
        log.info(
            "request_end",
            extra={
                "request_id": s.request_id,
                "model": s.model,
                "outcome": end.outcome.value,
                "dur_ms": round(seconds * 1000),
                "output_tokens": end.usage.completion_tokens if end.usage else None,
            },
        )
