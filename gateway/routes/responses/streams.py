"""The events of a Responses stream as bytes: live from the journal, or again from what is stored.

An event is `event: <type>` and `data: <json>`, one write each; nothing follows the last one, and no stream ends without
it. Events up to `after` are left out: the client has them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass

from starlette.requests import Request as HttpRequest

from gateway.dependencies import Services
from gateway.http.connection import while_connected
from gateway.http.sse import EventStream
from gateway.openai.responses.events import ResponseEvents
from gateway.routes.delivery import JournalCut, QueuePosition
from gateway.store.responses import StoredResponse
from shared.errors import HeadraceError
from shared.schemas import Frame, decode_frames

_TYPE = slice(len(b'{"type":"'), None)


@dataclass(frozen=True, slots=True)
class Run:
    """A response whose request is followed here; `stored` is None where it is not kept."""

    services: Services
    request_id: str
    events: ResponseEvents
    stored: StoredResponse | None

    async def convert(self, frames: list[Frame], seen: list[Frame]) -> list[bytes]:
        """Payloads of a batch. Its end is stored before it is told: who has heard of it can read it."""
        seen += frames if self.stored is not None else ()
        payloads = [payload for frame in frames for payload in self.events.convert(frame)]
        if self.events.is_done and self.stored is not None:
            await self.services.responses.end(self.stored, self.events, seen)
        return payloads


class TypedEvents:
    """Numbers the events as they pass, from 0, and leaves out those up to `after`."""

    def __init__(self, after: int) -> None:
        self._after = after
        self._last = -1

    def of(self, payloads: Iterable[bytes]) -> list[bytes]:
        return [self._event(payload) for payload in payloads if self._is_wanted()]

    def _is_wanted(self) -> bool:
        self._last += 1
        return self._last > self._after

    def _event(self, payload: bytes) -> bytes:
        kind = payload[_TYPE].partition(b'"')[0]
        return b"event: %b\ndata: %b\n\n" % (kind, payload)


async def live_stream(run: Run, after: int = -1, *, opening: list[bytes] | None = None) -> EventStream:
    """Of a request that was submitted or joined: from here on, closing the stream leaves it."""
    settings, dispatcher = run.services.settings, run.services.dispatcher
    events = _live(run, TypedEvents(after), opening or [])
    await anext(events)
    return EventStream(
        events,
        keepalive_s=settings.keepalive_s,
        stall_timeout_s=settings.stall_timeout_s,
        comment=QueuePosition(dispatcher, run.request_id),
    )


def stored_stream(services: Services, stored: StoredResponse, events: ResponseEvents, after: int) -> EventStream:
    """Of one that has ended: as it was streamed, from the journal that is kept."""
    settings = services.settings
    again = _again(stored, events, TypedEvents(after))
    return EventStream(again, keepalive_s=settings.keepalive_s, stall_timeout_s=settings.stall_timeout_s)


async def finished(http: HttpRequest, run: Run) -> None:
    """Until its journal has ended. Raises the typed error of an end that is no answer."""
    await while_connected(http.receive, _until_done(run))
    if run.events.failure is not None:
        raise run.events.failure


async def _until_done(run: Run) -> None:
    seen: list[Frame] = []
    async with run.services.dispatcher.follow(run.request_id) as journal:
        async for frames in journal:
            await run.convert(frames, seen)
            if run.events.is_done:
                return
    raise JournalCut(run.request_id)


async def _live(run: Run, typed: TypedEvents, opening: list[bytes]) -> AsyncGenerator[list[bytes], None]:
    """Yields nothing once, when the journal is followed; then the events of each batch of frames."""
    is_open = False
    seen: list[Frame] = []
    try:
        async with run.services.dispatcher.follow(run.request_id) as journal:
            is_open = True
            yield []
            yield [*opening, *typed.of(run.events.opening())]
            async for frames in journal:
                yield typed.of(await run.convert(frames, seen))
                if run.events.is_done:
                    return
    except HeadraceError as error:
        if not is_open:
            raise
        yield typed.of([run.events.error(error)])
        return
    raise JournalCut(run.request_id)


async def _again(
    stored: StoredResponse, events: ResponseEvents, typed: TypedEvents
) -> AsyncGenerator[list[bytes], None]:
    yield typed.of(events.opening())
    for frame in decode_frames(stored.journal):
        yield typed.of(events.convert(frame))
