"""The connection below ASGI, on a real port: limits on the head, time to send, no HTTP, bodies too large."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.unit.gateway.fakes import FakeDispatcher
from tests.unit.gateway.served import serving

CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
KEPT = b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n"


async def answer_to(data: bytes, **settings: Any) -> tuple[int, dict[str, str], dict[str, Any]]:
    """Status, headers and error of what is answered before the connection is closed."""
    async with serving(FakeDispatcher(), **settings) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
        writer.write(data)
        head, _, body = (await reader.read(100_000)).partition(b"\r\n\r\n")
        writer.close()
    lines = head.decode().split("\r\n")
    return int(lines[0].split()[1]), dict(line.split(": ", 1) for line in lines[1:]), json.loads(body)["error"]


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"\x16\x03\x01 not http \r\n\r\n", 400, "invalid_request_error"),
        (CHAT + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400, "invalid_request_error"),
        (CHAT + b"x: " + b"a" * 40_000 + b"\r\n\r\n", 431, "headers_too_large"),
        (CHAT + b"x: " + b"a" * 40_000, 431, "headers_too_large"),
        (b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n\r\n", 431, "headers_too_large"),
        (CHAT + b"".join(b"x-%d: a\r\n" % i for i in range(200)) + b"\r\n", 431, "headers_too_large"),
    ],
)
async def test_what_cannot_be_read_is_answered_in_shape_and_closed(data: bytes, status: int, code: str) -> None:
    answered, headers, error = await answer_to(data)
    assert (answered, error["code"], headers["connection"]) == (status, code, "close")
    assert set(error) == {"message", "type", "param", "code"} and len(headers["x-request-id"]) == 32


@pytest.mark.parametrize("data", [b"GET /v1/mod", CHAT + b"content-length: 100\r\n\r\n{"], ids=["head", "body"])
async def test_what_does_not_come_is_408(data: bytes) -> None:
    status, headers, error = await answer_to(data, receive_timeout_s=0.05)
    assert (status, error["code"], headers["connection"]) == (408, "request_timeout", "close")


async def test_a_connection_that_says_nothing_is_closed() -> None:
    async with serving(FakeDispatcher(), receive_timeout_s=0.05) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
        assert await reader.read() == b""
        writer.close()


async def test_a_connection_serves_one_request_after_another() -> None:
    async with serving(FakeDispatcher()) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
        for _ in range(3):
            writer.write(KEPT)
            assert b"200 OK" in await reader.readuntil(b'{"status":"ok"}')
        writer.close()


async def test_a_body_too_large_is_read_to_its_end_so_that_its_answer_is_too() -> None:
    async with serving(FakeDispatcher(), max_body_bytes=1000) as url, httpx.AsyncClient(trust_env=False) as client:
        content = b"x" * 8_000_000
        headers = {"content-type": "application/json"}
        for _ in range(2):
            reply = await client.post(f"{url}/v1/chat/completions", content=content, headers=headers)
            assert reply.status_code == 413 and "connection" not in reply.headers
