"""The embedded server as tests and load runs use it: a real process on a free loopback port."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from pathlib import Path

from deploy.valkey import server_argv, server_binary, url


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Valkey:
    """One server process. Its data stay in `directory` across `kill` and `start`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.url = url(self.port)
        self.start()

    def start(self) -> None:
        argv = server_argv(server_binary(), self.port, self.directory)
        self.process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        give_up = time.monotonic() + 20
        while not self._answers():
            assert self.process.poll() is None and time.monotonic() < give_up, "the embedded server does not start"

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
