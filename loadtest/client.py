"""A streaming client that costs next to nothing: on one machine it would otherwise take what it measures."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_RETRY_AFTER_MS = re.compile(rb"(?im)^retry-after-ms: *([\d.]+)")
_REQUEST_ID = re.compile(rb"(?im)^x-request-id: *(\S+)")


@dataclass(frozen=True, slots=True)
class Reply:
    """`first_s` and `last_s` from sending to the first data and to the end; `retry_after_s` of a refusal."""

    status: int
    request_id: str
    retry_after_s: float
    first_s: float
    last_s: float
    num_events: int
    tail: bytes


def _nothing(data: bytes) -> None: ...


async def complete(
    port: int,
    body: Mapping[str, object],
    headers: Mapping[str, str] | None = None,
    limit_s: float = 120.0,
    on_data: Callable[[bytes], None] = _nothing,
) -> Reply:
    """POST /v1/completions, streamed, to its end; `on_data` gets each event's data. Raises OSError, TimeoutError."""
    async with asyncio.timeout(limit_s):
        return await _complete(port, json.dumps({**body, "stream": True}).encode(), headers or {}, on_data)


async def _complete(port: int, payload: bytes, headers: Mapping[str, str], on_data: Callable[[bytes], None]) -> Reply:
    started = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
        + f"{lines}content-length: {len(payload)}\r\n\r\n".encode()
        + payload
    )
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        first_s, num_events, rest, tail = 0.0, 0, b"", b""
        while chunk := await reader.read(65536):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if line.startswith(b"data: "):
                    first_s = first_s or time.monotonic() - started
                    num_events += 1
                    on_data(line[6:])
            tail = (tail + chunk)[-2000:]
            if b"data: [DONE]" in tail:
                break
    finally:
        writer.close()
    retry_ms, request_id = _RETRY_AFTER_MS.search(head), _REQUEST_ID.search(head)
    return Reply(
        int(head[9:12]), request_id.group(1).decode() if request_id else "",
        float(retry_ms.group(1)) / 1000 if retry_ms else 0.0, first_s, time.monotonic() - started, num_events, tail,
    )  # fmt: skip
