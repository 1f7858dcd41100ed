"""One `headrace up` with stand-in services, as a process of its own: read, signalled and waited for by tests."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

SCRIPT = Path(__file__).parent / "stand_ins" / "up.py"
ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class LauncherRun:
    """Starts at once. `text` is all it has printed so far (both streams)."""

    def __init__(self, data_dir: Path, *worker_arguments: str, **settings: object) -> None:
        self.port = int(str(settings.pop("port", free_port())))
        given = {"data_dir": data_dir, "port": self.port, "drain_timeout_s": 5, **settings}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        environment = {f"HEADRACE_{name.upper()}": str(value) for name, value in given.items()}
        self.text = ""
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT), *worker_arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env={**kept, "PYTHONPATH": str(ROOT), **environment},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, wanted: str) -> str:
        """Reads until a line contains `wanted`; fails when the output ends before."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.text += line
            if wanted in line:
                return line
        raise AssertionError(f"never said {wanted!r}:\n{self.text}")

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        """Waits for the end and returns the exit code; the rest of the output is in `text`."""
        self.text += self._process.communicate()[0]
        return self._process.returncode

    def close(self) -> None:
        """For fixtures: ends it in whatever state it is."""
        if self._process.poll() is None:
            self._process.terminate()
            self.end()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def children(self) -> dict[str, int]:
        """pid by name: valkey, gateway, worker (the last of them)."""
        while True:
            pids = [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]
            kinds = [_kind(pid) for pid in pids]
            if "" not in kinds:
                return dict(zip(kinds, pids, strict=True))
            time.sleep(0.005)


def _kind(pid: int) -> str:
    """'' of one that was forked and still has its parent's command line, or none."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return ""
    return next((kind for kind in ("valkey", "gateway", "worker") if any(kind in word for word in words)), "")


def wait_until_gone(pidfds: list[int], timeout_s: float) -> bool:
    """True once every process behind `pidfds` has ended."""
    waiting = set(pidfds)
    while waiting:
        ended, _, _ = select.select(waiting, [], [], timeout_s)
        if not ended:
            return False
        waiting -= set(ended)
    return True
