"""Requests that this gateway makes to itself: a line of a batch goes the way of a request over HTTP, all of it.

So there is one conversion, one set of checks and one way to say what is wrong, whoever asks. What such a request has
beside its body (whose it is, its class, its deadline, its name) stands in the scope, where no client can put anything.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import cast

from starlette.types import ASGIApp, Message, Scope

from shared.access.entries import Tenant
from shared.schemas import ServiceClass

_EXTENSION = "headrace.inside"


@dataclass(slots=True)
class Inside:
    """`deadline_ms` from now. `key_hash` and `body_digest` name its run. Who asks keeps it durably, and asks again
    after a crash. `placed` is set, and `request_id` known, once it is in the queue."""

    tenant: Tenant
    service_class: ServiceClass
    deadline_ms: int
    key_hash: str
    body_digest: str
    request_id: str = ""
    placed: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class InsideReply:
    """`headers` with lower-case names."""

    status: int
    headers: dict[str, str]
    body: bytes


def inside_of(scope: Scope) -> Inside | None:
    """None for a client's request."""
    return cast("Inside | None", scope.get("extensions", {}).get(_EXTENSION))


async def call_inside(app: ASGIApp, path: str, body: bytes, inside: Inside, left: asyncio.Event) -> InsideReply | None:
    """POST a JSON body. `left`: the caller goes, as a client does that closes its connection; None then."""
    scope: Scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "client": None, "server": None,
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
        "extensions": {_EXTENSION: inside},
    }  # fmt: skip
    unread = [body]
    started: Message | None = None
    parts: list[bytes] = []

    async def receive() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal started
        if message["type"] == "http.response.start":
            started = message
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    if started is None:
        return None
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in started["headers"]}
    return InsideReply(int(started["status"]), headers, b"".join(parts))
