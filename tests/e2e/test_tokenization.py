"""The real model's tokenizer over HTTP, against what its generating endpoints count, as an evaluation tool asks."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from loadtest.stack import Stack
from tests.e2e.conftest import client_of
from tests.e2e.test_sdk import MODEL, QUESTION

pytestmark = pytest.mark.e2e


def test_tokens_told_are_those_that_are_counted(real: Stack) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "max_tokens": 1}
    with httpx.Client(base_url=real.base_url) as http, client_of(real) as client:
        rendered = http.post("/v1/chat/completions/render", json=asked).json()
        tokens = http.post("/tokenize", json={"messages": QUESTION}).json()["tokens"]
        text = http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
        usage = client.chat.completions.create(**asked).usage
    assert tokens == rendered["token_ids"] and text == rendered["prompt"]
    assert usage is not None and len(tokens) == usage.prompt_tokens


def test_an_evaluation_tool_finds_what_it_asks_for(real: Stack) -> None:
    """As lm-eval does: no model named, the end token's id by tokenizing its name, bare texts there and back."""
    with httpx.Client(base_url=real.base_url) as http:
        told = http.get("/tokenizer_info").json()
        (end,) = http.post("/tokenize", json={"prompt": told["eos_token"], "add_special_tokens": False}).json()[
            "tokens"
        ]
        bare = http.post("/tokenize", json={"prompt": " four naïve", "add_special_tokens": False}).json()["tokens"]
        assert (
            http.post("/detokenize", json={"tokens": [*bare, end]}).json()["prompt"]
            == f" four naïve{told['eos_token']}"
        )
    assert "messages" in told["chat_template"] and end == 2
