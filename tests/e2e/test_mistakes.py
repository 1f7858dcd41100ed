"""Bad input to the running server: each a 4xx that names the field, nothing queued, and the server stays up."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import pytest

from loadtest.stack import Stack
from tests.e2e.books import books_of

pytestmark = pytest.mark.e2e
USER = {"role": "user", "content": "hi"}
GOOD: dict[str, Any] = {"model": "simulated", "messages": [USER], "max_tokens": 2}

# What is sent over the good body, the status, and the field its error names.
FIELDS: list[tuple[dict[str, Any], int, str]] = [
    ({"model": "gpt-9"}, 404, "model"),
    ({"model": 5}, 400, "model"),
    ({"model": None}, 400, "model"),
    ({"messages": None}, 400, "messages"),
    ({"messages": []}, 400, "messages"),
    ({"messages": "hi"}, 400, "messages"),
    ({"messages": [{"role": "robot", "content": "hi"}]}, 400, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": "word " * 20_000}]}, 400, "messages"),
    ({"max_tokens": -1}, 400, "max_tokens"),
    ({"max_tokens": 0}, 400, "max_tokens"),
    ({"max_tokens": "5"}, 400, "max_tokens"),
    ({"max_tokens": 1.5}, 400, "max_tokens"),
    ({"max_tokens": 10**40}, 400, "max_tokens"),
    ({"temperature": "hot"}, 400, "temperature"),
    ({"temperature": -1}, 400, "temperature"),
    ({"temperature": 3}, 400, "temperature"),
    ({"top_p": 2}, 400, "top_p"),
    ({"top_k": -5}, 400, "top_k"),
    ({"seed": 2**70}, 400, "seed"),
    ({"stop": 7}, 400, "stop"),
    ({"stop": ["x"] * 100}, 400, "stop"),
    ({"n": 0}, 400, "n"),
    ({"n": 1000}, 400, "n"),
    ({"stream": "yes"}, 400, "stream"),
    ({"stream_options": {"include_usage": True}}, 400, "stream_options"),
    ({"service_tier": "batch"}, 400, "service_tier"),
    ({"deadline_ms": 0}, 400, "deadline_ms"),
    ({"tools": []}, 400, "tools"),
    ({"response_format": {"type": "yaml"}}, 400, "response_format.type"),
    ({"guided_json": {"type": "array", "contains": {}}}, 400, "guided_json"),
    ({"regex": "(a"}, 400, "regex"),
    ({"logit_bias": {"100000": 5}}, 400, "logit_bias"),
    ({"top_logprobs": 2}, 400, "top_logprobs"),
    ({"min_tokens": 10**6, "max_tokens": 5}, 400, "min_tokens"),
    ({"colour": "red"}, 400, "colour"),
]

RAW: list[tuple[bytes, int, str]] = [
    (b"", 400, "not valid JSON"),
    (b"{", 400, "not valid JSON"),
    (b"[]", 400, "JSON object"),
    (b'{"model": "\xff\xfe"}', 400, "UTF-8"),
    (b'{"temperature": NaN}', 400, "not valid JSON"),
    (b'{"metadata": ' + b"[" * 100 + b"]" * 100 + b"}", 400, "64 levels"),
    (b"[" * 100_000 + b"]" * 100_000, 400, "not valid JSON"),
    (b'{"model": "' + b"x" * 4_000_000 + b'"}', 413, "4000000 bytes"),
]


def post(stack: Stack, content: bytes) -> httpx.Response:
    headers = {"content-type": "application/json"}
    return httpx.post(f"{stack.base_url}/v1/chat/completions", content=content, headers=headers, trust_env=False)


@pytest.fixture(autouse=True)
async def nothing_was_queued(simulated: Stack):
    before = (await books_of(simulated)).sums
    yield
    assert (await books_of(simulated)).sums == before
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"{simulated.base_url}/health/ready")).status_code == 200


@pytest.mark.parametrize(("fields", "status", "param"), FIELDS, ids=lambda value: str(value)[:40])
def test_a_bad_field_is_named(simulated: Stack, fields: dict[str, Any], status: int, param: str) -> None:
    reply = post(simulated, json.dumps(GOOD | fields).encode())
    assert (reply.status_code, reply.json()["error"]["param"]) == (status, param)


@pytest.mark.parametrize(("content", "status", "words"), RAW, ids=lambda value: str(value)[:40])
def test_a_bad_body_is_explained(simulated: Stack, content: bytes, status: int, words: str) -> None:
    reply = post(simulated, content)
    assert reply.status_code == status
    assert words in reply.json()["error"]["message"]


HEADERS = [
    ("Idempotency-Key", "with blanks"),
    ("Idempotency-Key", "x" * 256),
    ("X-Headrace-Detach", "perhaps"),
    ("X-Headrace-Deadline-Ms", "soon"),
]


@pytest.mark.parametrize(("name", "value"), HEADERS, ids=lambda value: value[:24])
def test_a_header_that_cannot_be_meant_is_refused(simulated: Stack, name: str, value: str) -> None:
    url = f"{simulated.base_url}/v1/chat/completions"
    reply = httpx.post(url, json=GOOD, headers={name: value}, trust_env=False)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, name.lower())


def test_bytes_that_are_no_http_do_no_harm(simulated: Stack) -> None:
    with socket.create_connection(("127.0.0.1", simulated.port), timeout=5) as connection:
        connection.sendall(b"\x16\x03\x01 not http \r\n\r\n")
        assert b"400" in connection.recv(4096)


def test_other_paths_and_methods_answer_in_the_same_shape(simulated: Stack) -> None:
    for method, path, status in (("GET", "/v1/nothing", 404), ("GET", "/v1/chat/completions", 405)):
        reply = httpx.request(method, simulated.base_url + path, trust_env=False)
        assert (reply.status_code, set(reply.json()["error"])) == (status, {"message", "type", "param", "code"})
