"""Errors as HTTP: one table from the exception tree to status and type, and the handlers that use it.

Every body is `{"error": {"message", "type", "param", "code"}}` with all four keys, and nothing else is ever
sent for an error: not for unknown paths, wrong methods, broken JSON, or our own faults.
"""

from __future__ import annotations

import math
from typing import cast

import orjson
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gateway.openai.protocol import invalid_request
from shared.errors import (
    AuthenticationFailed,
    BatchNotFound,
    BodyTooLarge,
    DeadlineExceeded,
    FileNotFound,
    HeadersTooLarge,
    HeadraceError,
    IdempotencyConflict,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    PermissionDenied,
    RateLimited,
    ReceiveTimeout,
    RequestCancelled,
    RequestFailed,
    RequestNotFound,
    RouteNotFound,
    StreamContradiction,
    Unavailable,
    UnsupportedMediaType,
    WorkerNotFound,
)

# Exception -> status, type. The nearest ancestor counts.
TABLE: dict[type[HeadraceError], tuple[int, str]] = {
    InvalidRequest: (400, "invalid_request_error"),
    BodyTooLarge: (413, "invalid_request_error"),
    UnsupportedMediaType: (415, "invalid_request_error"),
    HeadersTooLarge: (431, "invalid_request_error"),
    ReceiveTimeout: (408, "invalid_request_error"),
    AuthenticationFailed: (401, "invalid_request_error"),
    PermissionDenied: (403, "invalid_request_error"),
    ModelNotFound: (404, "invalid_request_error"),
    RequestNotFound: (404, "invalid_request_error"),
    RouteNotFound: (404, "invalid_request_error"),
    WorkerNotFound: (404, "invalid_request_error"),
    FileNotFound: (404, "invalid_request_error"),
    BatchNotFound: (404, "invalid_request_error"),
    IdempotencyConflict: (409, "invalid_request_error"),
    Overloaded: (429, "rate_limit_error"),
    Unavailable: (503, "server_error"),
    RequestFailed: (500, "server_error"),
    DeadlineExceeded: (504, "server_error"),
    RequestCancelled: (499, "server_error"),
    HeadraceError: (500, "server_error"),
}
# A repeat of these ends the same way; clients repeat every 5xx and 409 unless told not to.
FINAL = (RequestFailed, IdempotencyConflict)
NOT_FINAL = (StreamContradiction,)
# What no route answers: status -> code.
UNROUTED = {404: "unknown_url", 405: "method_not_allowed"}
MIN_RETRY_S = 1.0
MAX_RETRY_S = 60.0  # the official client does not keep to longer ones
MAX_MESSAGE_CHARS = 4000


def status_and_type(error: HeadraceError) -> tuple[int, str]:
    return next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)


def error_payload(error: HeadraceError) -> bytes:
    """The JSON of an error, on one line: a body, or the data of an in-stream error frame."""
    return _payload(error.message, status_and_type(error)[1], error.param, error.code)


def error_response(error: HeadraceError) -> Response:
    return _response(status_and_type(error)[0], error_payload(error), _headers(error))


def internal_error(request_id: str) -> Response:
    """For a fault of ours: says nothing but where to look."""
    words = f"internal error; quote request {request_id} to the operator"
    return _response(500, _payload(words, "server_error", None, "server_error"), {})


def install_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(HeadraceError, _on_headrace_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_validation_error)


async def _on_headrace_error(_: Request, error: Exception) -> Response:
    return error_response(cast("HeadraceError", error))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    fault = cast("HTTPException", error)
    words = {
        404: f"unknown path: {request.method} {request.url.path}",
        405: f"{request.method} is not allowed on {request.url.path}",
    }.get(fault.status_code, str(fault.detail))
    code = UNROUTED.get(fault.status_code)
    kind = "server_error" if fault.status_code >= 500 else "invalid_request_error"
    return _response(fault.status_code, _payload(words, kind, None, code), dict(fault.headers or {}))


async def _on_validation_error(_: Request, error: Exception) -> Response:
    """Of a path, a query or a header; where it stood is not part of its name."""
    faults = cast("list[ErrorDetails]", cast("RequestValidationError", error).errors())
    return error_response(invalid_request([{**fault, "loc": fault["loc"][1:]} for fault in faults]))


def _headers(error: HeadraceError) -> dict[str, str]:
    headers: dict[str, str] = {}
    if isinstance(error, Overloaded | Unavailable):
        wait_s = error.retry_after_s
        if not isinstance(error, RateLimited):  # whose wait is exact, and at most a minute
            wait_s = min(max(wait_s, MIN_RETRY_S), MAX_RETRY_S)
        headers["retry-after"] = str(math.ceil(wait_s))
        headers["retry-after-ms"] = str(math.ceil(round(wait_s * 1000, 3)))
    if isinstance(error, AuthenticationFailed):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, FINAL) and not isinstance(error, NOT_FINAL):
        headers["x-should-retry"] = "false"
    if isinstance(error, HeadersTooLarge | ReceiveTimeout):
        headers["connection"] = "close"  # the rest of the request is not read
    return headers


def _payload(message: str, kind: str, param: str | None, code: str | None) -> bytes:
    error = {"message": message[:MAX_MESSAGE_CHARS], "type": kind, "param": param, "code": code}
    return orjson.dumps({"error": error})


def _response(status: int, payload: bytes, headers: dict[str, str]) -> Response:
    return Response(payload, status_code=status, media_type="application/json", headers=headers)
