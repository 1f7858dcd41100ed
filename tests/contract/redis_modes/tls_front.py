"""TLS before servers that speak none: the embedded one is built without. It asks clients for a certificate too.

Servers speak with one another as well, by the addresses they announce, which are those of their fronts; so a front may
let through whoever begins without TLS. What a client of ours began is seen in `num_tls`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"
_HANDSHAKE = b"\x16"


@dataclass(frozen=True, slots=True)
class Certificate:
    """Self-signed, for 127.0.0.1: its own authority, for both sides."""

    file: Path
    key: Path

    def query(self) -> str:
        """Of a URL: this certificate is shown and nobody else's is believed."""
        return f"?ssl_ca_certs={self.file}&ssl_certfile={self.file}&ssl_keyfile={self.key}"


def make_certificate(directory: Path) -> Certificate:
    made = Certificate(directory / "cert.pem", directory / "key.pem")
    argv = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-subj", "/CN=127.0.0.1",
        "-addext", f"subjectAltName=IP:{HOST}", "-keyout", str(made.key), "-out", str(made.file),
    ]  # fmt: skip
    subprocess.run(argv, check=True, capture_output=True)
    return made


class TlsFronts:
    """Fronts of one deployment, in a thread with a loop of its own."""

    def __init__(self, certificate: Certificate) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificate.file))
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(certificate.file, certificate.key)
        self._context = context
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda loop, context: None)  # refused handshakes are meant
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._listening: list[socket.socket] = []
        self.num_tls: dict[int, int] = {}

    def open(self, server_port: int, *, admits_plain: bool = False) -> int:
        """The port of a front before this port of this machine, which need not be listened to yet."""
        listener = socket.create_server((HOST, 0), backlog=128)
        listener.setblocking(False)
        self._listening.append(listener)
        self.num_tls[server_port] = 0
        asyncio.run_coroutine_threadsafe(self._accept(listener, server_port, admits_plain), self._loop)
        return int(listener.getsockname()[1])

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        for listener in self._listening:
            listener.close()

    # on the fronts' loop

    async def _end(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, listener: socket.socket, server_port: int, admits_plain: bool) -> None:
        serving: set[asyncio.Task[None]] = set()
        while True:
            connection, _ = await self._loop.sock_accept(listener)
            serving.add(task := asyncio.create_task(self._serve(connection, server_port, admits_plain)))
            task.add_done_callback(serving.discard)

    async def _serve(self, connection: socket.socket, server_port: int, admits_plain: bool) -> None:
        context = None if admits_plain and await self._first_byte(connection) != _HANDSHAKE else self._context
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, connection, ssl=context)
            self.num_tls[server_port] += context is not None
            await _carry(reader, asyncio.StreamWriter(transport, protocol, reader, self._loop), server_port)

    async def _first_byte(self, connection: socket.socket) -> bytes:
        """Looked at, and left there."""
        readable = self._loop.create_future()
        self._loop.add_reader(connection, lambda: readable.done() or readable.set_result(None))
        try:
            await readable
            return connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return b""
        finally:
            self._loop.remove_reader(connection)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server_port: int) -> None:
    try:
        server_reader, server_writer = await asyncio.open_connection(HOST, server_port)
    except OSError:
        writer.close()
        return
    ways = [asyncio.create_task(_pump(*ends)) for ends in ((reader, server_writer), (server_reader, writer))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        writer.close()
        server_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
