"""Several prompts in one request: each is a request of its own in the queue, and their journals are read as one.

Who leaves leaves all of them, and the error of one ends the others too, also those that would outlive their client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from gateway.dependencies import Dispatcher
from shared.errors import HeadraceError
from shared.schemas import Frame

Numbered = tuple[int, Frame]


@asynccontextmanager
async def followed_together(
    dispatcher: Dispatcher, request_ids: Sequence[str], tenant: str
) -> AsyncGenerator[AsyncIterator[list[Numbered]]]:
    """As the dispatcher's `follow`, of requests that were all submitted or joined: frames with their request's number,
    in order for each."""
    try:
        async with AsyncExitStack() as stack:
            following = [dispatcher.follow(request_id) for request_id in request_ids]
            journals = [await stack.enter_async_context(one) for one in following]
            frames = _merged(journals)
            stack.push_async_callback(frames.aclose)
            yield frames
    except HeadraceError:
        await asyncio.gather(*(_cancel(dispatcher, request_id, tenant) for request_id in request_ids))
        raise


async def _merged(journals: Sequence[AsyncIterator[list[Frame]]]) -> AsyncGenerator[list[Numbered]]:
    """A batch of one journal at a time, none read ahead of who takes them."""
    reading = {asyncio.create_task(_next(journal)): index for index, journal in enumerate(journals)}
    try:
        while reading:
            done, _ = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=reading.__getitem__):
                index, frames = reading[task], task.result()
                del reading[task]
                if frames is not None:
                    yield [(index, frame) for frame in frames]
                    reading[asyncio.create_task(_next(journals[index]))] = index
    finally:
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


async def _next(journal: AsyncIterator[list[Frame]]) -> list[Frame] | None:
    return await anext(journal, None)


async def _cancel(dispatcher: Dispatcher, request_id: str, tenant: str) -> None:
    with suppress(HeadraceError):
        await dispatcher.cancel(request_id, tenant)
