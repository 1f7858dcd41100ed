"""A whole deployment on this machine, as real processes: for end-to-end tests and load runs.

Every process is started by its own entry point, with settings by environment only, and killed by its own pid.
Loopback only, on free ports.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import httpx

from loadtest.valkey import Valkey, free_port

READY_S = 120.0
STOP_S = 20.0


def child_environment(settings: Mapping[str, object]) -> dict[str, str]:
    """This process's environment for a child, with these settings and no others of ours."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    return kept | {f"HEADRACE_{name.upper()}": str(value) for name, value in settings.items()}


class Stack:
    """Valkey, gateways, workers. `env` holds settings for all of them, without their prefix, in any case.
    `gateway`, `port` and `base_url` are the first gateway's. `ready_s` is how long starting may take.

    with Stack(directory, num_workers=2, env={"backend": "simulated"}) as stack: ...
    """

    ready_s = READY_S

    def __init__(
        self, directory: Path, *, num_workers: int = 1, num_gateways: int = 1, env: Mapping[str, object] | None = None
    ) -> None:
        self.directory = directory
        self.valkey = Valkey(directory)
        self.ports = [free_port() for _ in range(num_gateways)]
        self.base_urls = [f"http://127.0.0.1:{port}" for port in self.ports]
        self.port, self.base_url = self.ports[0], self.base_urls[0]
        self._settings = {"redis_url": self.valkey.url, "data_dir": directory, **(env or {})}
        self.gateways = [self.start_gateway(i) for i in range(num_gateways)]
        self.workers = [self.start_worker(f"worker{i}") for i in range(num_workers)]

    def __enter__(self) -> Stack:
        try:
            self.wait_ready(len(self.workers))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        unwilling = self.stop()
        if error is None and unwilling:
            raise RuntimeError(f"{unwilling} had to be killed:\n{self.logs()}")

    @property
    def gateway(self) -> subprocess.Popen[bytes]:
        return self.gateways[0]

    def settings_of(self, name: str) -> dict[str, object]:
        """What the process of this name is given beside what all have; for a subclass."""
        return {}

    def python_of(self, name: str) -> str:
        """The interpreter of the process of this name; for a subclass."""
        return sys.executable

    def start_worker(self, name: str) -> subprocess.Popen[bytes]:
        return self._start("worker.service", name)

    def start_gateway(self, index: int) -> subprocess.Popen[bytes]:
        """On the port this gateway always has."""
        return self._start("gateway.app", f"gateway{index}", port=self.ports[index])

    def restart_gateway(self, index: int = 0) -> None:
        """Kill it at once, and start another on the same port."""
        self.gateways[index].send_signal(signal.SIGKILL)
        self.gateways[index].wait()
        self.gateways[index] = self.start_gateway(index)
        self.wait_ready(0)

    def wait_ready(self, num_workers: int) -> None:
        """Until every gateway sees that many live workers. Raises RuntimeError with the logs' ends."""
        give_up = time.monotonic() + self.ready_s
        while time.monotonic() < give_up and all(p.poll() is None for p in (*self.gateways, *self.workers)):
            try:
                ready = f"/health/ready?min_workers={num_workers}"
                if all(httpx.get(url + ready, timeout=2, trust_env=False).is_success for url in self.base_urls):
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.05)
        raise RuntimeError(f"the stack did not become ready:\n{self.logs()}")

    def logs(self) -> str:
        parts = [f"== {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.directory.glob("*.log"))]
        return "\n".join(parts)

    def stop(self) -> list[int]:
        """SIGTERM, then SIGKILL for those named in the answer by pid; the server last."""
        unwilling: list[int] = []
        processes = [*self.gateways, *getattr(self, "workers", [])]
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                unwilling.append(process.pid)
                process.kill()
                process.wait()
        self.valkey.kill()
        return unwilling

    def _start(self, module: str, name: str, **settings: object) -> subprocess.Popen[bytes]:
        env = child_environment({**self._settings, **settings, **self.settings_of(name)})
        with (self.directory / f"{name}.log").open("ab") as log:
            argv = [self.python_of(name), "-m", module]
            return subprocess.Popen(argv, env=env, stdout=log, stderr=subprocess.STDOUT)
