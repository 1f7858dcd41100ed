"""Which clients here follow which request: joining, reading, leaving, and reading on where nobody is left.

The last client to leave detaches this gateway, and the last gateway to leave cancels. A request that outlives its
client (detached, or with an idempotency key) is read on instead until its end: the queue keeps its witness. A command
to Redis is never cut off half-way on a shared connection: it is shielded, and finished when its caller is gone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable
from contextlib import suppress
from typing import TypeVar

from redis.exceptions import RedisError

from gateway.fanout import Fanout
from gateway.lookup import Found
from gateway.subscription import Subscription
from shared import faults
from shared.config import GatewaySettings
from shared.errors import HeadraceError, RequestNotFound, Unavailable
from shared.metrics.pace import Pace
from shared.observability import GatewayMetrics
from shared.redis_client import AWAY, Scripts, end_tasks
from shared.request_queue import Admitted, RequestQueue, Ticket
from shared.schemas import EndFrame, Frame, TokensFrame, decode_frames

log = logging.getLogger(__name__)
_RETRY_S = 0.5
_DETACH_TRIES = 50
T = TypeVar("T")


class Attendance:
    """One a gateway process."""

    def __init__(
        self, settings: GatewaySettings, scripts: Scripts, gateway: str, fanout: Fanout, metrics: GatewayMetrics
    ) -> None:
        self._settings = settings
        self._scripts = scripts
        self._gateway = gateway
        self._fanout = fanout
        self._metrics = metrics
        self._tasks: set[asyncio.Task[object]] = set()
        self._witnesses: set[asyncio.Task[None]] = set()

    async def stop(self) -> None:
        """Waits for what runs in the background. What outlives its clients goes on without this witness."""
        await end_tasks(*self._witnesses)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._settings.redis_timeout_s)

    async def finish(self, call: Awaitable[T]) -> T:
        """The result of a call that goes on though its caller is cancelled."""
        return await asyncio.shield(self.spawn(call))

    def spawn(self, call: Awaitable[T]) -> asyncio.Task[T]:
        async def run() -> T:
            return await call

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def begin(self, s: Subscription) -> None:
        """A client's request is in the queue, and the client about to follow it."""
        s.is_admitted = True
        self._metrics.requests_in_flight.labels(s.model).inc()

    async def join(self, found: Found) -> None:
        """One more client is about to follow: along with those here, or from an empty prefix.

        Raises RequestNotFound, Unavailable.
        """
        record = found.record
        s = self._fanout.get(record.request_id)
        if s is None or s.error is not None:
            about = (record.service_class, record.tenant, record.prompt_tokens, record.max_tokens, record.n)
            s = Subscription(found.model, Ticket(record.request_id, *about), b"", num_followers=0)
            self._fanout.add(s)
        s.num_followers += 1
        self.begin(s)
        if s.body:
            return  # admitted here: it hears everything already
        try:
            await self.finish(self._attach(s))
        except BaseException:
            self.leave(s)
            raise
        self._fanout.catch_up(s)

    async def frames(self, s: Subscription) -> AsyncGenerator[list[Frame]]:
        """From the first to the EndFrame, each once and in order. Raises what breaks the stream."""
        cursor = 0
        while True:
            if len(s.journal) > cursor:
                frames = decode_frames(bytes(s.journal[cursor:]))
                cursor = len(s.journal)
                if not s.has_tokens and any(isinstance(frame, TokensFrame) for frame in frames):
                    self._count_first_token(s)
                if s.body and cursor > s.length_paced:
                    s.length_paced = cursor
                    self._pace(s).heard(frames)
                end = frames[-1]
                if isinstance(end, EndFrame):
                    self._count_end(s, end)  # before it is told: who has read it asks for nothing more
                await faults.hit("forward")
                yield frames
                if isinstance(end, EndFrame):
                    return
            elif s.error is not None:
                raise s.error
            else:
                await s.changes.next()

    def leave(self, s: Subscription) -> None:
        """A client less. After the last: forget the request here and tell the queue, in the background and until it
        is heard, unless it has ended; or read on."""
        self._metrics.requests_in_flight.labels(s.model).dec()
        s.num_followers -= 1
        if s.num_followers > 0 or s.is_witnessed:
            return
        if s.outlives_its_client and not s.is_done:
            self._witness(s)
            return
        self.forget(s)

    async def withdraw(self, s: Subscription) -> None:
        """Ends it, though it may outlive its client, who is refused after all; in the background until it is heard,
        and mostly before this returns."""
        s.body = b""  # nobody brings it back
        await asyncio.wait({self.spawn(self._cancel(s))}, timeout=self._settings.redis_timeout_s)
        self.leave(s)

    def forget(self, s: Subscription) -> None:
        """Nobody follows it here. Who has joined it anew, after this stream broke, stays."""
        if self._fanout.get(s.request_id) is s:
            self._fanout.remove(s.request_id)
        if not s.is_done or s.error is not None:
            self.spawn(self._detach(s))

    async def abandon(self, s: Subscription, admission: asyncio.Task[Admitted]) -> None:
        """Its client left while it was being admitted: it may be in the queue, or be about to be."""
        await asyncio.wait([admission])
        if admission.exception() is None and admission.result().decision in ("accepted", "duplicate"):
            self.begin(s)
            self.leave(s)
        else:
            self.forget(s)

    async def _attach(self, s: Subscription) -> None:
        """From here on the worker publishes to this gateway too; what was before is in the journal."""
        try:
            await self._fanout.subscribe(s.model)
            if await self._queue(s.model).attach(s.request_id, self._gateway) == "gone":
                raise RequestNotFound(f"request {s.request_id} is not known any more")
        except (*AWAY, TimeoutError) as error:
            raise Unavailable(f"the queue is not reachable: {error}") from error

    def _witness(self, s: Subscription) -> None:
        s.is_witnessed = True
        task = asyncio.create_task(self._read_on(s))
        self._witnesses.add(task)
        task.add_done_callback(self._witnesses.discard)

    async def _read_on(self, s: Subscription) -> None:
        with suppress(HeadraceError):
            async for _ in self.frames(s):
                pass
        s.is_witnessed = False
        if s.num_followers == 0:
            self.forget(s)

    async def _detach(self, s: Subscription) -> None:
        for _ in range(_DETACH_TRIES):
            if self._fanout.get(s.request_id) is not None:
                return  # somebody has joined it again
            try:
                how = await self._queue(s.model).detach(s.request_id, self._gateway)
                log.info("request_left", extra={"request_id": s.request_id, "result": how})
                return
            except (RedisError, OSError):
                await asyncio.sleep(_RETRY_S)

    async def _cancel(self, s: Subscription) -> None:
        for _ in range(_DETACH_TRIES):
            with suppress(RedisError, OSError):
                await self._queue(s.model).cancel(s.request_id)
                return
            await asyncio.sleep(_RETRY_S)

    def _queue(self, model: str) -> RequestQueue:
        return RequestQueue(self._scripts, model, self._settings.retention_s, self._settings.lease_ms)

    def _pace(self, s: Subscription) -> Pace:
        if s.pace is None:
            limits = (self._settings.slo_ttft_s, self._settings.slo_tpot_s)
            s.pace = Pace(self._metrics.pace, (s.model, s.ticket.service_class), s.received_at, limits)
        return s.pace

    def _count_first_token(self, s: Subscription) -> None:
        """Once a request, at the gateway that admitted it; as its end."""
        s.has_tokens = True
        if s.body:
            s.first_token_s = seconds = time.monotonic() - s.received_at
            self._metrics.time_to_first_token.labels(s.model, s.ticket.service_class).observe(seconds)

    def _count_end(self, s: Subscription, end: EndFrame) -> None:
        if s.has_ended or not s.body:
            return
        s.has_ended = True
        seconds = time.monotonic() - s.received_at
        labels = (s.model, s.ticket.service_class, end.outcome.value)
        self._metrics.requests.labels(*labels).inc()
        self._metrics.request_duration.labels(*labels).observe(seconds)
        log.info("request_end", extra=_end_line(s, end, seconds))


def _end_line(s: Subscription, end: EndFrame, seconds: float) -> dict[str, str | int | None]:
    """The one line that tells a request's whole story here; what is not known is null."""
    usage = end.usage
    return {
        "request_id": s.request_id,
        "trace_id": s.ticket.traceparent.split("-")[1] if s.ticket.traceparent else None,
        "model": s.model,
        "class": s.ticket.service_class,
        "outcome": end.outcome.value,
        "reason": end.error.code if end.error else None,
        "dur_ms": round(seconds * 1000),
        "ttft_ms": None if s.first_token_s is None else round(s.first_token_s * 1000),
        "prompt_tokens": s.ticket.prompt_tokens,
        "cached_tokens": usage.cached_tokens if usage else None,
        "output_tokens": usage.completion_tokens if usage else None,
    }
