"""Bodies that clients send by themselves, each found by running them (`python -m loadtest clients`)."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.openai.responses.protocol import parse_response
from shared.errors import UnsupportedParameter
from tests.unit.gateway.fakes import CARD, build_app, client_of


@pytest.mark.parametrize(
    ("asked", "status", "param", "code"),
    [
        ({"model": CARD.name, "input": "a", "encoding_format": "base64"}, 400, "model", "unsupported_parameter"),
        ({"model": CARD.name, "input": [[1, 2]]}, 400, "model", "unsupported_parameter"),
        ({"model": "none", "input": ["a"]}, 404, "model", "model_not_found"),
        ({"model": CARD.name}, 400, "input", "invalid_request_error"),
        ({"model": CARD.name, "input": "a", "dimension": 3}, 400, "dimension", "unknown_parameter"),
    ],
)
async def test_embeddings_are_refused_in_words(asked: Any, status: int, param: str, code: str) -> None:
    async with client_of(build_app()) as client:
        reply = await client.post("/v1/embeddings", json=asked)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (status, param, code)


def test_codex_tells_of_itself() -> None:
    body = b'{"model": "m", "input": "a", "client_metadata": {"turn_id": "t"}}'
    assert parse_response(body).model == "m"
    with pytest.raises(UnsupportedParameter, match="client_metadata"):
        parse_response(body, is_strict=True)
