"""From a followed journal to a response: the events of a stream, or one plain body.

Nothing here ends a stream without its last event: a journal that stops before its end is an error that drops
the connection.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from gateway.dependencies import Dispatcher
from gateway.http.errors import error_payload
from gateway.http.sse import event
from gateway.openai.chunks import DONE, ChunkStream
from gateway.openai.replies import Reply
from shared.errors import HeadraceError


class JournalCut(Exception):
    """A journal stopped before its end frame."""


async def opened_events(
    dispatcher: Dispatcher, request_id: str, chunks: ChunkStream
) -> AsyncGenerator[list[bytes], None]:
    """Events of a stream that is already followed: from here on, closing the generator cancels the request.

    Following before the response is built leaves no moment at which a client's leaving goes unnoticed, and
    gives a status to what fails at once.
    """
    events = _events(dispatcher, request_id, chunks)
    await anext(events)
    return events


async def _events(dispatcher: Dispatcher, request_id: str, chunks: ChunkStream) -> AsyncGenerator[list[bytes], None]:
    """Yields nothing once, when the journal is followed; then the events of each batch of frames."""
    is_open = False
    try:
        async with dispatcher.follow(request_id) as journal:
            is_open = True
            yield []
            async for frames in journal:
                yield [event(payload) for frame in frames for payload in chunks.convert(frame)]
                if chunks.is_done:
                    break
            if chunks.failure is not None:
                raise chunks.failure
    except HeadraceError as error:
        if not is_open:
            raise
        yield [event(error_payload(error)), event(DONE)]
        return
    if not chunks.is_done:
        raise JournalCut(request_id)


async def plain_body(dispatcher: Dispatcher, request_id: str, reply: Reply) -> bytes:
    """Raises the typed error of a request that ended without an answer."""
    async with dispatcher.follow(request_id) as journal:
        async for frames in journal:
            reply.add(frames)
            if reply.is_done:
                return reply.body()
    raise JournalCut(request_id)
