"""Server-sent events: bytes of an event, and the response that writes a stream of them.

A stream never ends cleanly without its last event: whatever goes wrong drops the connection, since a clean
end reads as success. No `id:` lines on OpenAI's streams (clients choke on them next to comments), and no `retry:`
lines anywhere; one frame a write; comments keep the connection alive, also while the request is queued.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.http.connection import body_send, disconnected, finish, quietly, try_abort
from shared.metrics.http import HttpMetrics

logger = logging.getLogger(__name__)
KEEP_ALIVE = b": keep-alive\n\n"
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


def event(payload: bytes) -> bytes:
    """One data-only event; `payload` holds no line end."""
    return b"data: %b\n\n" % payload


def numbered_event(number: int, payload: bytes) -> bytes:
    """For streams that can be resumed after `number`; comments between such events must end in one line end."""
    return b"id: %d\ndata: %b\n\n" % (number, payload)


async def keep_alive() -> bytes:
    return KEEP_ALIVE


class StreamStalled(Exception):
    """The client took nothing for `stall_timeout_s`."""


class EventStream(Response):
    """Writes the events of `source`, a frame a write, then ends.

    The source is closed exactly once: after its last event, when the client leaves or stalls, or when it fails.
    Its failure is raised after closing, for the server to drop the connection. `comment` is asked for what to say
    when nothing came for `keepalive_s`.
    """

    def __init__(
        self,
        source: AsyncGenerator[list[bytes], None],
        *,
        keepalive_s: float,
        stall_timeout_s: float,
        comment: Callable[[], Awaitable[bytes]] = keep_alive,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(HEADERS)
        self._source = source
        self._keepalive_s = keepalive_s
        self._stall_timeout_s = stall_timeout_s
        self._comment = comment

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        metrics: HttpMetrics | None = scope.get("state", {}).get("http_metrics")
        writer = _Writer(send, body_send(scope, send), metrics)
        pump = asyncio.create_task(self._pump(writer))
        gone = asyncio.create_task(disconnected(receive))
        try:
            if metrics is not None:
                metrics.sse_subscribers.inc()
            await self._watch(writer, pump, gone)
        except StreamStalled:
            if metrics is not None:
                metrics.slow_client_drops.inc()
            logger.warning("client_stalled", extra={"stall_timeout_s": self._stall_timeout_s})
            if not await try_abort(scope):
                raise
        finally:
            if metrics is not None:
                metrics.sse_subscribers.dec()
            await finish(pump, gone)
            await quietly(self._source.aclose())

    async def _pump(self, writer: _Writer) -> None:
        await writer.start(self.status_code, self.raw_headers)
        async for events in self._source:
            for data in events:
                await writer.write(data)
        await writer.end()

    async def _watch(self, writer: _Writer, pump: asyncio.Task[None], gone: asyncio.Task[None]) -> None:
        """Returns when the pump is done or the client gone; raises the pump's failure, or StreamStalled."""
        while True:
            await asyncio.wait({pump, gone}, timeout=self._until_due(writer), return_when=asyncio.FIRST_COMPLETED)
            if pump.done():
                return pump.result()
            if gone.done():
                return None
            if writer.is_writing:
                if writer.age_s() >= self._stall_timeout_s:
                    raise StreamStalled
            elif writer.age_s() >= self._keepalive_s:
                await self._keep_alive(writer)

    def _until_due(self, writer: _Writer) -> float:
        """At most a stall's length, so that a write that begins meanwhile is looked at in time."""
        limit = self._stall_timeout_s if writer.is_writing else self._keepalive_s
        return min(max(limit - writer.age_s(), 0.001), self._stall_timeout_s)

    async def _keep_alive(self, writer: _Writer) -> None:
        try:
            async with asyncio.timeout(self._stall_timeout_s):
                await writer.write(await self._comment())
        except TimeoutError:
            raise StreamStalled from None


class _Writer:
    """`age_s` is the time since the last write began: how long it is stuck, or how idle we are.

    A frame and a comment may be written at once: the server takes each whole, so they never mix.
    """

    def __init__(self, send: Send, send_body: Send, metrics: HttpMetrics | None) -> None:
        self._metrics = metrics
        self._num_writing = 0
        self._send = send
        self._send_body = send_body
        self._now = asyncio.get_running_loop().time
        self._began = self._now()

    @property
    def is_writing(self) -> bool:
        return self._num_writing > 0

    def age_s(self) -> float:
        return self._now() - self._began

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        await self._one(self._send, {"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes) -> None:
        await self._one(self._send_body, {"type": "http.response.body", "body": data, "more_body": True})
        if self._metrics is not None:
            self._metrics.sse_bytes.inc(len(data))

    async def end(self) -> None:
        await self._one(self._send, {"type": "http.response.body", "body": b"", "more_body": False})

    async def _one(self, send: Send, message: dict[str, object]) -> None:
        self._num_writing += 1
        self._began = self._now()
        await send(message)
        self._num_writing -= 1
