"""A TCP proxy that misbehaves on command: latency, bandwidth, blackhole, cut, reset. In front of Redis or a gateway.

Proxies live in one thread with an event loop of its own, so that whoever commands them may block. Every command is a
plain method, callable from any thread, and holds for connections that are there and those to come. Loopback only.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

HOST = "127.0.0.1"
_CHUNK_BYTES = 65536
# SO_LINGER on, zero seconds: closing sends RST, and what was under way is lost.
_RESET = struct.pack("ii", 1, 0)
T = TypeVar("T")


class ProxyThread:
    """The event loop all proxies of a run share. `stop` ends it and them."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._proxies: list[Proxy] = []

    def open(self, target_port: int) -> Proxy:
        """A proxy on a free port, in front of `target_port`."""
        proxy = Proxy(self, target_port)
        self.wait_for(proxy.listen())
        self._proxies.append(proxy)
        return proxy

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=10)

    def post(self, call: Any, *args: object) -> None:
        self._loop.call_soon_threadsafe(call, *args)

    def stop(self) -> None:
        for proxy in self._proxies:
            self.wait_for(proxy.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()


@dataclass(eq=False, slots=True)
class _Link:
    """One connection: both ends, and the task that carries."""

    task: asyncio.Task[None]
    writers: list[asyncio.StreamWriter]


class Proxy:
    """`port` is where to connect. Latency and bandwidth hold for each direction."""

    def __init__(self, thread: ProxyThread, target_port: int) -> None:
        self._thread = thread
        self._target_port = target_port
        self._links: set[_Link] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._latency_s = 0.0
        self._bytes_per_s = 0.0
        self._refuses = False

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, HOST, 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        self._server.close()
        self._open.set()
        links = list(self._links)
        for link in links:
            link.task.cancel()
        await asyncio.gather(*(link.task for link in links), return_exceptions=True)

    # commands, from any thread

    def delay(self, latency_ms: float) -> None:
        """Hold every piece back for so long; 0 ends it."""
        self._latency_s = latency_ms / 1000

    def throttle(self, bytes_per_s: float) -> None:
        """0: no limit."""
        self._bytes_per_s = bytes_per_s

    def blackhole(self, *, is_on: bool) -> None:
        """Nothing gets through, and nobody is told; what came meanwhile goes on when it ends."""
        self._thread.post(self._open.clear if is_on else self._open.set)

    def refuse(self, *, is_on: bool) -> None:
        """Cut all connections and close new ones at once, until it ends."""
        self._refuses = is_on
        if is_on:
            self.cut()

    def cut(self) -> None:
        """End every connection in order (FIN); new ones may come."""
        self._thread.post(self._end_all, False)

    def reset(self) -> None:
        """Break every connection (RST): what was under way is lost."""
        self._thread.post(self._end_all, True)

    def heal(self) -> None:
        self.delay(0)
        self.throttle(0)
        self._refuses = False
        self.blackhole(is_on=False)

    # on the proxies' loop

    def _end_all(self, is_reset: bool) -> None:
        for link in self._links:
            if is_reset:
                for writer in link.writers:
                    sock: socket.socket = writer.get_extra_info("socket")
                    with contextlib.suppress(OSError):
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    writer.transport.abort()
            link.task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        link = _Link(task, [writer])
        self._links.add(link)
        try:
            await self._carry(link, reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # an end of a connection, ordered or not, is what this is for
        finally:
            self._links.discard(link)
            for end in link.writers:
                end.close()

    async def _carry(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            return
        target_reader, target_writer = await asyncio.open_connection(HOST, self._target_port)
        link.writers.append(target_writer)
        ways = [
            asyncio.create_task(self._pump(reader, target_writer)),
            asyncio.create_task(self._pump(target_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction, to its end."""
        while data := await reader.read(_CHUNK_BYTES):
            if self._latency_s:
                await asyncio.sleep(self._latency_s)
            await self._open.wait()
            if self._bytes_per_s:
                await asyncio.sleep(len(data) / self._bytes_per_s)
            writer.write(data)
            await writer.drain()
