"""TLS before a server that speaks none: the embedded one is built without. It asks clients for a certificate too."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
import threading
from pathlib import Path

HOST = "127.0.0.1"


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key; it is its own authority, for both sides."""
    certificate, key = directory / "cert.pem", directory / "key.pem"
    argv = [
        "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
        "-addext", f"subjectAltName=IP:{HOST}", "-keyout", str(key), "-out", str(certificate),
    ]  # fmt: skip
    subprocess.run(argv, check=True, capture_output=True)
    return certificate, key


class TlsFront:
    """Passes what it decrypts on to the loopback port; a thread with a loop of its own."""

    def __init__(self, server_port: int, certificate: Path, key: Path) -> None:
        self._server_port = server_port
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificate))
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(certificate, key)
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda loop, context: None)  # refused handshakes are meant
        starting = asyncio.start_server(self._serve, HOST, 0, ssl=context)
        self._server = self._loop.run_until_complete(starting)
        self.port = int(self._server.sockets[0].getsockname()[1])
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection(HOST, self._server_port)
        except OSError:
            writer.close()
            return
        pairs = ((reader, server_writer), (server_reader, writer))
        ways = [asyncio.create_task(_pump(source, sink)) for source, sink in pairs]
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
