"""A client's connection: noticing that it left, and cutting it.

ASGI can end a response only cleanly, which clients take for success, or by raising, after which a server still
waits for a client that does not read. So `Abortable`, outermost around the app, gives each request the means
to drop its connection at once. Knows no endpoint and no stream format.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, cast

from starlette.types import ASGIApp, Receive, Scope, Send

logger = logging.getLogger(__name__)
T = TypeVar("T")
_ABORT = "headrace.abort"
_SEND = "headrace.send"


class ClientLeft(Exception):
    """The client closed its connection before its answer was ready; there is nobody to tell."""


class Abortable:
    """The outermost ASGI app: remembers the server's transport, where the server has one to show (uvicorn)."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        transport = getattr(getattr(send, "__self__", None), "transport", None)
        abort = getattr(transport, "abort", None)
        if scope["type"] == "http" and abort is not None:
            scope.setdefault("extensions", {}).update({_ABORT: abort, _SEND: send})
        await self.app(scope, receive, send)


def body_send(scope: Scope, send: Send) -> Send:
    """For the parts of a body once its response was begun by `send`: what stands around the app looks at none of them,
    and a stream has very many."""
    return cast("Send", scope.get("extensions", {}).get(_SEND, send))


async def try_abort(scope: Scope) -> bool:
    """Close the connection now, dropping what is not sent yet. False where the server gives no means to."""
    abort: Callable[[], None] | None = scope.get("extensions", {}).get(_ABORT)
    if abort is None:
        return False
    abort()
    await asyncio.sleep(0)  # the server learns of the loss in the loop's next turn
    return True


async def disconnected(receive: Receive) -> None:
    """Returns when the client is gone. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled and awaited when the client leaves: ClientLeft."""
    task, gone = asyncio.create_task(work), asyncio.create_task(disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientLeft
        return task.result()
    finally:
        await finish(task, gone)


async def finish(*tasks: asyncio.Task[Any]) -> None:
    """Cancel what still runs and wait for its cleanup; a cleanup that fails is logged, not raised."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    for result in await asyncio.gather(*running, return_exceptions=True):
        if isinstance(result, Exception):
            logger.warning("cleanup after a client left failed", exc_info=result)


async def quietly(closing: Awaitable[Any]) -> None:
    """Await a cleanup whose failure must not hide what went before."""
    try:
        await closing
    except Exception:
        logger.warning("closing a stream's source failed", exc_info=True)
