"""Which web pages are shown our answers."""

from __future__ import annotations

import httpx
import pytest
from pydantic import ValidationError

from shared.config import GatewaySettings
from tests.unit.gateway.fakes import build_app, client_of

PAGE = "https://app.example"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}


async def call(origins: str, method: str, path: str, headers: dict[str, str]) -> httpx.Response:
    settings = GatewaySettings.model_validate({"cors_origins": origins})
    async with client_of(build_app(settings=settings)) as client:
        return await client.request(method, path, headers=headers)


async def test_a_preflight_is_answered_for_a_page_that_is_named() -> None:
    reply = await call(f"https://other.example, {PAGE}/", "OPTIONS", "/v1/chat/completions", PREFLIGHT)
    assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (204, PAGE)
    assert reply.headers["access-control-allow-headers"] == "authorization,content-type"
    assert "POST" in reply.headers["access-control-allow-methods"] and reply.headers["x-request-id"]


@pytest.mark.parametrize("path", ["/v1/models", "/nowhere"])
async def test_replies_and_refusals_are_shown_with_their_headers(path: str) -> None:
    reply = await call("*", "GET", path, {"origin": PAGE})
    assert reply.headers["access-control-allow-origin"] == "*"
    exposed = reply.headers["access-control-expose-headers"].split(", ")
    assert {"x-request-id", "retry-after", "x-ratelimit-remaining-tokens", "x-should-retry"} <= set(exposed)


@pytest.mark.parametrize("origins", ["", "https://other.example"])
async def test_other_pages_are_not_shown_them(origins: str) -> None:
    for method, headers in (("GET", {"origin": PAGE}), ("OPTIONS", PREFLIGHT)):
        assert "access-control-allow-origin" not in (await call(origins, method, "/v1/models", headers)).headers


async def test_without_an_origin_nothing_is_said() -> None:
    assert not [name for name in (await call("*", "GET", "/v1/models", {})).headers if name.startswith("access-")]


def test_what_is_no_origin_refuses_the_start() -> None:
    with pytest.raises(ValidationError, match="no origin"):
        GatewaySettings.model_validate({"cors_origins": "app.example/path"})
