"""A body of known length from a generator of chunks, to a client that reads it, or is cut off.

A client that takes nothing for `stall_timeout_s` loses its connection, as one of a stream does (sse.py): what it had
is short of `content-length`, so that it takes it for a failure.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.http.connection import ClientLeft, try_abort, while_connected

logger = logging.getLogger(__name__)
# Small, so that a slow reader is not taken for one that does not read.
_WRITE_BYTES = 64 * 1024


class Download(Response):
    """`chunks` are closed whatever happens. Any error of theirs before the first is raised before the head is sent."""

    def __init__(
        self,
        chunks: AsyncGenerator[bytes],
        *,
        num_bytes: int,
        stall_timeout_s: float,
        headers: Mapping[str, str] | None = None,
        media_type: str = "application/octet-stream",
    ) -> None:
        self.status_code = 200
        self.media_type = media_type
        self.background = None
        self.init_headers({**(headers or {}), "content-length": str(num_bytes)})
        self._chunks = chunks
        self._stall_timeout_s = stall_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._send(send))
        except ClientLeft:
            pass
        except TimeoutError:
            logger.warning("client_stalled", extra={"stall_timeout_s": self._stall_timeout_s})
            if not await try_abort(scope):
                raise
        finally:
            await self._chunks.aclose()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for chunk in self._chunks:
            for start in range(0, len(chunk), _WRITE_BYTES):
                await self._write(send, chunk[start : start + _WRITE_BYTES], more_body=True)
        await self._write(send, b"", more_body=False)

    async def _write(self, send: Send, body: bytes, *, more_body: bool) -> None:
        async with asyncio.timeout(self._stall_timeout_s):
            await send({"type": "http.response.body", "body": body, "more_body": more_body})
