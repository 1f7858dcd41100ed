"""Tokenizers over HTTP, through the real ASGI app around fakes."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from gateway.dependencies import Services
from shared.access.entries import ANONYMOUS, Tenant
from shared.schemas import ModelCard
from tests.unit.gateway.fakes import CARD, TOKENIZER, FakeCatalogue, FakeDispatcher, build_app, chat_body, client_of

RENDER = "/v1/chat/completions/render"
HI: list[Any] = [{"role": "user", "content": "hi"}]
PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


async def post(path: str, body: Any, app: Any = None) -> httpx.Response:
    async with client_of(app or build_app()) as client:
        return await client.post(path, json=body)


async def test_a_text_becomes_tokens_and_they_become_the_text_again() -> None:
    text = "the café <|end|> 日本"
    tokens = (await post("/tokenize", {"prompt": text, "add_special_tokens": False})).json()
    assert tokens == {"tokens": TOKENIZER.encode(text), "count": len(TOKENIZER.encode(text)), "max_model_len": 512}
    assert (await post("/detokenize", {"tokens": tokens["tokens"]})).json() == {"prompt": text}


async def test_messages_are_the_tokens_that_a_chat_would_have() -> None:
    dispatcher = FakeDispatcher()
    body = chat_body(messages=HI)
    tokens = (await post("/tokenize", body)).json()["tokens"]
    await post("/v1/chat/completions", body, build_app(dispatcher))
    rendered = (await post(RENDER, body)).json()
    assert tuple(tokens) == dispatcher.requests[0].prompt_ids == tuple(rendered["token_ids"])
    assert rendered["prompt"] == PROMPT and rendered["max_tokens"] == dispatcher.requests[0].params.max_tokens
    assert (await post("/tokenize", body | {"add_generation_prompt": False})).json()["count"] < len(tokens)


async def test_tools_are_in_the_prompt_they_would_be_in() -> None:
    tools = [{"type": "function", "function": {"name": "weather"}}]
    rendered = (await post(RENDER, chat_body(tools=tools))).json()
    assert "weather" in rendered["prompt"]
    assert (await post("/tokenize", {"messages": HI, "tools": tools})).json()["tokens"] == rendered["token_ids"]


async def test_rendering_queues_nothing() -> None:
    dispatcher = FakeDispatcher()
    assert (await post(RENDER, chat_body(), build_app(dispatcher))).status_code == 200
    assert dispatcher.requests == []


async def test_what_the_tokenizer_says_of_itself() -> None:
    async with client_of(build_app()) as client:
        told = (await client.get("/tokenizer_info", params={"model": CARD.name})).json()
    assert told == dict.fromkeys(("eos_token", "bos_token", "pad_token")) | {"chat_template": TOKENIZER.chat_template}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": HI}, "prompt"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"messages": HI, "chat_template": "{{ x }}"}, "chat_template"),
        ("/tokenize", {"messages": HI, "chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
        ("/tokenize", {"prompt": "a", "return_token_strs": True}, "return_token_strs"),
        ("/tokenize", {"prompt": "a", "colour": 1}, "colour"),
        ("/detokenize", {"tokens": [1, 265]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        (RENDER, chat_body(max_tokens=5000), "messages"),
        (RENDER, chat_body(n=5), "n"),
        (RENDER, chat_body(regex="("), "regex"),
    ],
)
async def test_what_cannot_be_is_refused_by_its_field(path: str, body: Any, param: str) -> None:
    response = await post(path, body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", RENDER])
async def test_a_model_that_is_not_served_is_404(path: str) -> None:
    bodies = {"/tokenize": {"prompt": "a"}, "/detokenize": {"tokens": [1]}, RENDER: chat_body()}
    response = await post(path, bodies[path] | {"model": "none"})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


class Two(FakeCatalogue):
    def cards(self) -> list[ModelCard]:
        return [CARD, msgspec.structs.replace(CARD, name="acme/other")]


@pytest.mark.parametrize(
    ("asking", "status"),
    [(ANONYMOUS, 400), (Tenant(name="a", models=(CARD.name,)), 200), (Tenant(name="a", models=("x",)), 404)],
)
async def test_without_a_model_it_is_the_only_one_that_the_key_may_use(asking: Tenant, status: int) -> None:
    app = build_app(asking=asking)
    services: Services = app.state.services
    object.__setattr__(services, "catalogue", Two())
    async with client_of(app) as client:
        response = await client.get("/tokenizer_info")
    assert response.status_code == status
    assert status == 200 or response.json()["error"]["param"] == "model"
