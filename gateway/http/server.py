"""The connection below ASGI: how large a request's head may be, how long a request may take to come, and that what is
no HTTP is answered in the error shape, with a request id, like everything else.

    head    from its first byte (or the connection's beginning) complete within `receive_timeout_s`, and within
            MAX_HEADERS and `max_header_bytes`, the request line included
    body    something of it every `receive_timeout_s`, unless we do not read; what comes after its answer was given is
            read and dropped, so that the client gets to read that answer, up to MAX_UNREAD_BYTES
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.http.errors import error_response
from gateway.openai.identity import new_request_id
from shared.errors import HeadersTooLarge, InvalidRequest, ReceiveTimeout

logger = logging.getLogger(__name__)
MAX_HEADERS = 128
MAX_UNREAD_BYTES = 64_000_000


@dataclass(frozen=True, slots=True)
class ReceiveLimits:
    max_header_bytes: int = 32_768
    receive_timeout_s: float = 30.0


class GatewayProtocol(HttpToolsProtocol):
    """uvicorn's, with limits. `_since`: when the head, or the last of the body, came; None: nothing is awaited."""

    limits: ClassVar[ReceiveLimits] = ReceiveLimits()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_in_head = True
        self._head_bytes = 0
        self._unread_bytes = 0
        self._refusal: InvalidRequest | None = None
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_more()

    def connection_lost(self, exc: Exception | None) -> None:
        self._since = None
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._since is None and self._is_in_head:
            self._await_more()
        was_in_head = self._is_in_head
        super().data_received(data)
        if was_in_head and self._is_in_head and self._since is not None:
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.max_header_bytes and not self.transport.is_closing():
                self._refuse(self._too_large())

    # parser callbacks; what they raise reaches `send_400_response`

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._size = 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count(len(name) + len(value) + 4)
        if len(self.headers) > MAX_HEADERS:
            self._refusal = HeadersTooLarge(f"the request has more than {MAX_HEADERS} headers")
            raise self._refusal

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._head_bytes = self._unread_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._since = self.loop.time()
        if self.cycle.response_complete:
            self._unread_bytes += len(body)
            if self._unread_bytes > MAX_UNREAD_BYTES:
                self.transport.abort()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_head = True
        self._since = None
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refusal or InvalidRequest("this is not a valid HTTP request"))

    def _unsupported_upgrade_warning(self) -> None:
        """There are no WebSockets here; the request is answered as if it had not asked."""

    def _count(self, num_bytes: int) -> None:
        self._size += num_bytes
        if self._size > self.limits.max_header_bytes:
            self._refusal = self._too_large()
            raise self._refusal

    def _too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(f"the request line and headers are larger than {self.limits.max_header_bytes} bytes")

    # time

    def _await_more(self) -> None:
        self._since = self.loop.time()
        if self._timer is None:
            self._timer = self.loop.call_later(self.limits.receive_timeout_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._since is None or self.transport.is_closing():
            return
        if not self._is_in_head and self.flow.read_paused:
            self._since = self.loop.time()
        left_s = self._since + self.limits.receive_timeout_s - self.loop.time()
        if left_s > 0.001:
            self._timer = self.loop.call_later(left_s, self._look)
        elif self._is_in_head and not self._head_bytes:
            self.transport.close()
        else:
            what = "head" if self._is_in_head else "body"
            self._refuse(
                ReceiveTimeout(f"the {what} of the request did not come within {self.limits.receive_timeout_s:g} s")
            )

    def _refuse(self, error: InvalidRequest) -> None:
        """Answer and close; where another answer is under way, or has been given, only close."""
        self._since = None
        request_id = new_request_id()
        logger.info("connection_refused", extra={"request_id": request_id, "code": error.code, "reason": error.message})
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            self.transport.abort()
            return
        if self._is_in_head or cycle is None or not cycle.response_started:
            response = error_response(error)
            fields = [*response.raw_headers, (b"x-request-id", request_id.encode()), (b"connection", b"close")]
            head = STATUS_LINE[response.status_code] + b"".join(b"%b: %b\r\n" % field for field in dict(fields).items())
            self.transport.write(head + b"\r\n" + bytes(response.body))
        self.transport.close()


def protocol_within(limits: ReceiveLimits) -> type[GatewayProtocol]:
    """For uvicorn, which makes a protocol a connection itself."""
    return type("LimitedProtocol", (GatewayProtocol,), {"limits": limits})
