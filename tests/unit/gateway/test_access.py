"""Keys and limits through the real ASGI app: who may ask for what, and what a refusal says."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from shared.access.entries import ANONYMOUS, Tenant
from shared.access.limits import Bucket, LimitStanding
from shared.errors import Overloaded
from shared.schemas import ServiceClass
from tests.unit.gateway.fakes import CARD, FakeDispatcher, build_app, chat_body, client_of, completion_body

CHAT = "/v1/chat/completions"


async def call(
    method: str, path: str, asking: Tenant | None, dispatcher: FakeDispatcher | None = None, **request: Any
) -> httpx.Response:
    async with client_of(build_app(dispatcher, asking=asking)) as client:
        return await client.request(method, path, **request)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", CHAT, b"{"),
        ("POST", "/v1/completions", b""),
        ("GET", "/v1/models", b""),
        ("GET", "/v1/models/x", b""),
        ("POST", "/tokenize", b"{"),
        ("POST", "/detokenize", b""),
        ("GET", "/tokenizer_info", b""),
        ("POST", f"{CHAT}/render", b""),
    ],
)
async def test_without_a_key_every_endpoint_is_401_before_anything_else(method: str, path: str, body: bytes) -> None:
    response = await call(method, path, None, content=body)
    assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
    assert response.json()["error"] | {"message": ""} == {
        "message": "", "type": "invalid_request_error", "param": None, "code": "invalid_api_key",
    }  # fmt: skip


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/metrics"])
async def test_probes_need_no_key(path: str) -> None:
    assert (await call("GET", path, None)).status_code == 200


async def test_a_model_that_a_key_may_not_use_does_not_exist_for_it_and_a_class_is_403() -> None:
    tenant = Tenant(name="acme", models=("other",))
    for model in (CARD.name, "unknown"):
        refused = await call("POST", CHAT, tenant, json=chat_body(model=model))
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
        assert f"'{model}' does not exist. Available models: none" in refused.json()["error"]["message"]
    assert (await call("GET", f"/v1/models/{CARD.name}", tenant)).status_code == 404
    assert (await call("GET", "/v1/models", tenant)).json()["data"] == []
    flex_only = Tenant(name="acme", service_classes=(ServiceClass.FLEX,))
    refused = await call("POST", CHAT, flex_only, json=chat_body(service_tier="default"))
    assert (refused.status_code, refused.json()["error"]["param"]) == (403, "service_tier")


async def test_a_request_carries_its_tenant() -> None:
    dispatcher = FakeDispatcher()
    tenant = Tenant(name="acme", weight=3.0, models=(CARD.name,))
    await call("POST", CHAT, tenant, dispatcher, json=chat_body())
    assert dispatcher.requests[0].tenant == "acme" and dispatcher.options[0].tenant == tenant


async def test_sizes_of_a_key_are_400_by_name_and_bound_what_is_not_given() -> None:
    tenant = Tenant(name="acme", max_prompt_tokens=100, max_output_tokens=9)
    dispatcher = FakeDispatcher()
    long = await call("POST", CHAT, tenant, json=chat_body(messages=[{"role": "user", "content": "x" * 200}]))
    much = await call("POST", CHAT, tenant, json=chat_body(max_completion_tokens=10))
    await call("POST", CHAT, tenant, dispatcher, json=chat_body())
    await call("POST", "/v1/completions", tenant, dispatcher, json=completion_body())
    assert (long.status_code, long.json()["error"]["param"]) == (400, "messages")
    assert (much.status_code, much.json()["error"]["param"]) == (400, "max_completion_tokens")
    assert "max_output_tokens 9" in much.json()["error"]["message"]
    assert [request.params.max_tokens for request in dispatcher.requests] == [9, 9]


@pytest.mark.parametrize("stream", [False, True])
async def test_replies_carry_the_figures_of_the_limits(stream: bool) -> None:
    dispatcher = FakeDispatcher()
    dispatcher.standing = LimitStanding("reserved", 0, Bucket(60, 1), None, 1)
    response = await call("POST", CHAT, Tenant(name="a"), dispatcher, json=chat_body(stream=stream))
    assert (response.status_code, response.headers["x-ratelimit-remaining-requests"]) == (200, "59")
    assert response.headers["x-ratelimit-reset-requests"] == "1s"
    assert "x-ratelimit-limit-tokens" not in response.headers


async def test_a_reached_limit_is_429_with_its_exact_wait_and_nothing_queued() -> None:
    dispatcher = FakeDispatcher()
    dispatcher.standing = LimitStanding("requests", 41_234, Bucket(60, 60), None, 1)
    response = await call("POST", CHAT, Tenant(name="a"), dispatcher, json=chat_body())
    assert (response.status_code, response.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert (response.headers["retry-after"], response.headers["retry-after-ms"]) == ("42", "41234")
    assert response.headers["x-ratelimit-remaining-requests"] == "0" and dispatcher.requests == []


async def test_without_limits_there_are_no_figures() -> None:
    response = await call("POST", CHAT, ANONYMOUS, json=chat_body())
    assert not [name for name in response.headers if name.startswith("x-ratelimit")]


async def test_figures_of_a_charge_that_was_given_back_are_not_told() -> None:
    dispatcher = FakeDispatcher(refusal=Overloaded("the queue is full", retry_after_s=2.0))
    dispatcher.standing = LimitStanding("reserved", 0, Bucket(60, 1), None, 1)
    response = await call("POST", CHAT, Tenant(name="a"), dispatcher, json=chat_body())
    assert response.status_code == 429 and "x-ratelimit-remaining-requests" not in response.headers
