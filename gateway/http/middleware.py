"""What every request passes, as plain ASGI: its id, the last resort for our faults, and the body limit.

Plain ASGI because a wrapper that buffers or owns a task breaks streams and hides a client's leaving.

    Cors             where origins are set: the headers by which a browser shows a page the answer (cors.py)
    RequestContext   x-request-id on every response and log line, one line when it is over; an exception before the
                     response began becomes a 500, being cancelled, as what outlasts a drain is, a 503
    BodyLimit        more than max_body_bytes, announced or counted, is a 413
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Mapping

from fastapi import FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.connection import ClientLeft
from gateway.http.cors import Cors, Preflight, origins_of
from gateway.http.errors import error_response, internal_error
from gateway.http.inside import inside_of
from gateway.openai.identity import new_request_id
from shared.errors import BodyTooLarge, Unavailable
from shared.metrics.http import HttpMetrics
from shared.observability import current_request_id

logger = logging.getLogger(__name__)
_CLIENT_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


# Asked every few seconds by machines: said in the log only at level debug.
_PROBES = ("/health/", "/metrics")


def install_middleware(
    app: FastAPI, max_body_bytes: int, cors_origins: str = "", *, longer: Mapping[str, int] | None = None,
    metrics: HttpMetrics | None = None,
) -> None:  # fmt: skip
    """`longer`: the limits of paths that have one of their own."""
    app.router.redirect_slashes = False  # a redirect behind a TLS proxy loses scheme and authorization
    app.add_middleware(BodyLimit, max_body_bytes=max_body_bytes, longer=longer or {})
    origins = origins_of(cors_origins)
    if origins:
        app.add_middleware(Preflight)
    app.add_middleware(RequestContext, metrics=metrics)
    if origins:
        app.add_middleware(Cors, origins=origins)


class RequestContext:
    """`request.state.request_id` is ours and unique: header, queue, log and journal name a request by it.

    What a route puts into `request.state.reply_headers` goes out with its reply, errors included.
    A client's own id (two attempts may share one) comes back as `x-client-request-id`, and is logged beside ours.
    """

    def __init__(self, app: ASGIApp, metrics: HttpMetrics | None = None) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        request_id = new_request_id()
        client_id = _client_id(Headers(scope=scope))
        if client_id is not None:
            logger.info("client_request_id", extra={"request_id": request_id, "client_request_id": client_id})
        scope.setdefault("state", {}).update(request_id=request_id, reply_headers={}, http_metrics=self.metrics)
        current_request_id.set(request_id)
        status, began = 0, time.monotonic()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                headers.update(scope["state"]["reply_headers"])
                if client_id is not None:
                    headers["x-client-request-id"] = client_id
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except (ClientLeft, ClientDisconnect):
            logger.info("client_left", extra={"request_id": request_id})
            status = 0
        except (Exception, asyncio.CancelledError) as error:
            reply = _last_reply(error, request_id, scope["path"])
            if status:
                raise  # the server drops the connection: a clean end would read as success
            await reply(scope, receive, send_with_id)
        finally:
            seconds = time.monotonic() - began
            _log_end(scope, status, seconds)
            if self.metrics is not None and inside_of(scope) is None:
                route = getattr(scope.get("route"), "path", "")
                self.metrics.count(route, scope["method"], status, seconds)


def _log_end(scope: Scope, status: int, seconds: float) -> None:
    """`status` 0: the client left before it had an answer."""
    level = logging.DEBUG if scope["path"].startswith(_PROBES) else logging.INFO
    if logger.isEnabledFor(level):
        about = {"method": scope["method"], "path": scope["path"][:256], "status": status}
        request_id = scope["state"]["request_id"]
        logger.log(level, "http_request", extra={"request_id": request_id, **about, "dur_ms": round(seconds * 1000)})


def _last_reply(error: BaseException, request_id: str, path: str) -> Response:
    """For what no handler answered; our faults are logged."""
    if isinstance(error, asyncio.CancelledError):
        return error_response(Unavailable("this gateway is being stopped"))
    logger.exception("request_crashed", extra={"request_id": request_id, "path": path})
    return internal_error(request_id)


def _client_id(headers: Headers) -> str | None:
    for name in ("x-request-id", "x-client-request-id"):
        value = headers.get(name, "")
        if _CLIENT_ID.fullmatch(value):
            return value
    return None


class BodyLimit:
    """Reads no more than the limit: an announced excess is refused unread, a hidden one when it is reached."""

    def __init__(self, app: ASGIApp, max_body_bytes: int, longer: Mapping[str, int]) -> None:
        self.app = app
        self.max_body_bytes = max_body_bytes
        self.longer = longer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        limit = self.longer.get(scope["path"], self.max_body_bytes)
        headers = Headers(scope=scope)
        length = headers.get("content-length", "")
        if length.isascii() and length.isdigit() and int(length) > limit:
            refusal = error_response(_too_large(limit))
            if "expect" in headers:  # it may now send the body or not, so what comes next could be either
                refusal.headers["connection"] = "close"
            return await refusal(scope, receive, send)
        received = 0

        async def receive_limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise _too_large(limit)
            return message

        await self.app(scope, receive_limited, send)


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is larger than {limit} bytes")
