"""From a followed journal to a response: the events of a stream, or one plain body.

Nothing here ends a stream without its last event: a journal that stops before its end is an error that drops
the connection.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

from gateway.dependencies import Dispatcher
from gateway.dispatch import Placed
from gateway.http.errors import error_payload
from gateway.http.sse import KEEP_ALIVE, event, numbered_event
from gateway.lookup import Place
from gateway.openai.chunks import DONE
from gateway.routes.standing import work_headers
from shared.errors import HeadraceError, RequestFailed

F = TypeVar("F")
F_contra = TypeVar("F_contra", contravariant=True)
# What a dispatcher's `follow` gives, of one request's frames or of several's.
Following = AbstractAsyncContextManager[AsyncIterator[list[F]]]


class Chunks(Protocol[F_contra]):
    """As ChunkStream (gateway/openai/chunks.py)."""

    is_done: bool
    failure: RequestFailed | None

    def convert(self, frame: F_contra, /) -> list[bytes]: ...


class Whole(Protocol[F_contra]):
    """As Reply (gateway/openai/replies.py)."""

    @property
    def is_done(self) -> bool: ...

    def add(self, frames: Iterable[F_contra], /) -> None: ...

    def body(self) -> bytes: ...


class JournalCut(Exception):
    """A journal stopped before its end frame."""


class Numbers:
    """Numbers the data events of a stream from 1, and leaves out those up to `after`: the client has them."""

    def __init__(self, after: int) -> None:
        self._after = after
        self._last = 0

    def event(self, payload: bytes) -> bytes:
        self._last += 1
        return numbered_event(self._last, payload) if self._last > self._after else b""


class QueuePosition:
    """The comment of a silent stream: where its request waits, each time that has changed. `end` ends a comment."""

    def __init__(self, dispatcher: Dispatcher, request_id: str, *, end: bytes = b"\n\n") -> None:
        self._dispatcher = dispatcher
        self._request_id = request_id
        self._end = end
        self._last: int | None = None

    def opening(self, place: Place | None) -> list[bytes]:
        """What is said at once: nothing to who is next anyway."""
        return [] if place is None or place.position == 1 else [self._said(place)]

    async def __call__(self) -> bytes:
        place = await self._dispatcher.place_here(self._request_id)
        if place is None or place.position == self._last:
            return KEEP_ALIVE.rstrip() + self._end
        return self._said(place)

    def _said(self, place: Place) -> bytes:
        self._last = place.position
        eta = b"" if place.eta_ms is None else b" eta_ms=%d" % place.eta_ms
        return b": queued position=%d%b%b" % (place.position, eta, self._end)


async def opened_events(
    following: Following[F],
    chunks: Chunks[F],
    *,
    to_event: Callable[[bytes], bytes] = event,
    opening: Sequence[bytes] = (),
) -> AsyncGenerator[list[bytes], None]:
    """Events of a stream that is already followed: from here on, closing the generator leaves the request.

    Following before the response is built leaves no moment at which a client's leaving goes unnoticed, and
    gives a status to what fails at once.
    """
    events = _events(following, chunks, to_event, opening)
    await anext(events)
    return events


async def _events(
    following: Following[F],
    chunks: Chunks[F],
    to_event: Callable[[bytes], bytes],
    opening: Sequence[bytes],
) -> AsyncGenerator[list[bytes], None]:
    """Yields nothing once, when the journal is followed; then the events of each batch of frames."""
    is_open = False
    try:
        async with following as journal:
            is_open = True
            yield []
            yield list(opening)
            async for frames in journal:
                events = [to_event(payload) for frame in frames for payload in chunks.convert(frame)]
                if events:
                    yield [data for data in events if data]
                if chunks.is_done:
                    break
            if chunks.failure is not None:
                raise chunks.failure
    except HeadraceError as error:
        if not is_open:
            raise
        yield [data for data in (to_event(error_payload(error)), to_event(DONE)) if data]
        return
    if not chunks.is_done:
        raise JournalCut


async def work_facts(dispatcher: Dispatcher, placed: Placed) -> dict[str, str]:
    """Headers: who made an answer and how long it took; none when that cannot be read now: the answer stands."""
    try:
        return work_headers(await dispatcher.record(placed))
    except HeadraceError:
        return {}


async def plain_body(following: Following[F], reply: Whole[F]) -> bytes:
    """Raises the typed error of a request that ended without an answer."""
    async with following as journal:
        async for frames in journal:
            reply.add(frames)
            if reply.is_done:
                return reply.body()
    raise JournalCut
