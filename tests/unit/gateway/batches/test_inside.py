"""A request of our own making: the whole way of one over HTTP, with what stands beside it from us."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import orjson

from gateway.http.inside import Inside, call_inside
from shared.access.entries import Tenant
from shared.errors import Overloaded
from shared.schemas import ServiceClass
from tests.unit.gateway.fakes import FakeDispatcher, build_app, chat_body, client_of

CHAT = "/v1/chat/completions"


def inside(**fields: Any) -> Inside:
    known: dict[str, Any] = {"tenant": Tenant(name="acme"), "service_class": ServiceClass.BATCH, "deadline_ms": 5000}
    known |= {"key_hash": "k", "body_digest": "d", **fields}
    return Inside(**known)


async def test_the_answer_is_what_a_client_gets() -> None:
    app = build_app(FakeDispatcher())
    reply = await call_inside(app, CHAT, orjson.dumps(chat_body()), inside(), asyncio.Event())
    async with client_of(app) as client:
        response = await client.post(CHAT, json=chat_body())
    assert reply is not None and (reply.status, orjson.loads(reply.body).keys()) == (200, response.json().keys())
    assert orjson.loads(reply.body)["choices"] == response.json()["choices"]


async def test_class_key_deadline_and_tenant_are_ours() -> None:
    dispatcher, asked = FakeDispatcher(), inside()
    await call_inside(build_app(dispatcher), CHAT, orjson.dumps(chat_body()), asked, asyncio.Event())
    (request,), (options,) = dispatcher.requests, dispatcher.options
    assert (request.tenant, request.service_class) == ("acme", ServiceClass.BATCH)
    assert (options.start_deadline_ms, options.deadline_ms, options.key_hash, options.body_digest) == (
        0,
        5000,
        "k",
        "d",
    )
    assert options.detached and options.is_kept_elsewhere
    assert asked.placed.is_set() and asked.request_id == request.request_id


async def test_a_refusal_is_a_reply_and_the_line_is_not_placed() -> None:
    asked = inside()
    app = build_app(FakeDispatcher(refusal=Overloaded("full", retry_after_s=2.0)))
    reply = await call_inside(app, CHAT, orjson.dumps(chat_body()), asked, asyncio.Event())
    assert reply is not None and (reply.status, reply.headers["retry-after-ms"]) == (429, "2000")
    assert not asked.placed.is_set()


async def test_who_leaves_is_noticed_as_a_client_is() -> None:
    dispatcher, left, asked = FakeDispatcher(hold=True, batches=[[]]), asyncio.Event(), inside()
    call = asyncio.create_task(call_inside(build_app(dispatcher), CHAT, orjson.dumps(chat_body()), asked, left))
    await asked.placed.wait()
    left.set()
    assert await call is None
    assert dispatcher.left == [asked.request_id]


async def test_a_client_cannot_pass_for_us() -> None:
    dispatcher = FakeDispatcher()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(build_app(dispatcher)), base_url="http://g") as client:
        await client.post(CHAT, json=chat_body(), headers={"headrace.inside": "{}"})
    assert dispatcher.requests[0].service_class is ServiceClass.DEFAULT and not dispatcher.options[0].detached
