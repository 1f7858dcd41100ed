"""Many streams at once from one process, for next to nothing: a protocol a connection that counts events.

Works with any server that speaks OpenAI's streams. On one machine the client takes from what it measures, so nothing
is parsed here but the ends of events.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

_DATA = b"data: "
_DONE = b"data: [DONE]"


@dataclass(slots=True)
class Stream:
    """`num_events` without `[DONE]`; `arrivals` (monotonic, one an event) only of those that are watched."""

    is_watched: bool = False
    status: int = 0
    head: bytes = b""
    num_events: int = 0
    num_bytes: int = 0
    is_done: bool = False
    first_at: float = 0.0
    tail: bytes = b""
    arrivals: list[float] = field(default_factory=list[float])


class _Connection(asyncio.Protocol):
    def __init__(self, request: bytes, stream: Stream, ended: asyncio.Future[None]) -> None:
        self._request, self._stream, self._ended = request, stream, ended

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        stream = self._stream
        stream.num_bytes += len(data)
        if not stream.status:
            stream.status = int(data[9:12])
            stream.head = data.partition(b"\r\n\r\n")[0]
        data = stream.tail + data
        num_events = data.count(_DATA)
        stream.tail = data[-(len(_DONE) - 1) :] if not data.endswith(b"\n") else b""
        if num_events:
            now = time.monotonic()
            stream.first_at = stream.first_at or now
            stream.num_events += num_events - stream.tail.count(_DATA)
            if stream.is_watched:
                stream.arrivals += [now] * (num_events - stream.tail.count(_DATA))
            if _DONE in data:
                stream.num_events -= 1
                stream.is_done = True
                self._transport.close()
        elif stream.status != 200:
            stream.tail = data[-2000:]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._ended.done():
            self._ended.set_result(None)


@dataclass(frozen=True, slots=True)
class Target:
    port: int
    path: str = "/v1/chat/completions"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


async def run_streams(
    target: Target,
    bodies: Sequence[Mapping[str, object]],
    *,
    limit_s: float,
    watched_every: int = 0,
    on_open: Callable[[], None] = lambda: None,
    wave: int = 50,
) -> list[Stream]:
    """Each body as a stream, all at once, opened `wave` at a time; `on_open` when all are. Raises TimeoutError."""
    loop = asyncio.get_running_loop()
    streams = [Stream(is_watched=bool(watched_every) and i % watched_every == 0) for i in range(len(bodies))]
    endings: list[asyncio.Future[None]] = []
    for start in range(0, len(bodies), wave):
        opening: list[asyncio.Task[object]] = []
        for stream, body in zip(streams[start : start + wave], bodies[start : start + wave], strict=True):
            ended = loop.create_future()
            endings.append(ended)
            connection = _Connection(_request(target, body), stream, ended)
            opening.append(asyncio.create_task(_open(connection, target.port)))
        await asyncio.gather(*opening)
    on_open()
    async with asyncio.timeout(limit_s):
        await asyncio.gather(*endings)
    return streams


async def _open(connection: _Connection, port: int) -> object:
    return await asyncio.get_running_loop().create_connection(lambda: connection, "127.0.0.1", port)


def _request(target: Target, body: Mapping[str, object]) -> bytes:
    content = json.dumps({**body, "stream": True}).encode()
    lines = "".join(f"{name}: {value}\r\n" for name, value in target.headers.items())
    head = (
        f"POST {target.path} HTTP/1.1\r\nhost: 127.0.0.1:{target.port}\r\ncontent-type: application/json\r\n"
        f"accept: text/event-stream\r\n{lines}content-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content
