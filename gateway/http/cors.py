"""Who may read our answers from a web page of another origin: the CORS headers, by setting.

Outermost, so that every reply has them, also a refusal, which a page could not read without. Keys come in the
authorization header, never as cookies, so credentials in the browser's sense are not allowed.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ANY = "*"
METHODS = "GET, POST, PUT, DELETE, OPTIONS"
PREFLIGHT_VALID_S = 600
EXPOSED = (
    "x-request-id", "x-client-request-id", "retry-after", "retry-after-ms", "x-should-retry",
    "x-ratelimit-limit-requests", "x-ratelimit-limit-tokens", "x-ratelimit-remaining-requests",
    "x-ratelimit-remaining-tokens", "x-ratelimit-reset-requests", "x-ratelimit-reset-tokens",
    "x-headrace-queue-position", "x-headrace-queue-eta-ms", "x-headrace-worker", "x-headrace-timings",
    "x-headrace-durability", "x-headrace-model", "x-headrace-fallback",
)  # fmt: skip


def origins_of(setting: str) -> tuple[str, ...]:
    """`https://a.example, https://b.example`, or `*`."""
    return tuple(origin.strip().rstrip("/") for origin in setting.split(",") if origin.strip())


class Cors:
    """Around the app where origins are set. A page of any other origin gets an answer that its browser hides."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self.app = app
        self.origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = Headers(scope=scope).get("origin") if scope["type"] == "http" else None
        if origin is None:
            return await self.app(scope, receive, send)

        async def send_with_origin(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.add_vary_header("origin")
                if self._is_allowed(origin):
                    headers["access-control-allow-origin"] = ANY if ANY in self.origins else origin
                    headers["access-control-expose-headers"] = ", ".join(EXPOSED)
            await send(message)

        await self.app(scope, receive, send_with_origin)

    def _is_allowed(self, origin: str) -> bool:
        return ANY in self.origins or origin in self.origins


class Preflight:
    """Answers a browser's question before the request, which no route knows. Inside `RequestContext`."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "OPTIONS":
            return await self.app(scope, receive, send)
        asked = Headers(scope=scope)
        if "origin" not in asked or "access-control-request-method" not in asked:
            return await self.app(scope, receive, send)
        headers = {
            "access-control-allow-methods": METHODS,
            "access-control-allow-headers": asked.get("access-control-request-headers", ANY),
            "access-control-max-age": str(PREFLIGHT_VALID_S),
            "vary": "access-control-request-headers",
        }
        await Response(status_code=204, headers=headers)(scope, receive, send)
