"""Keeps children alive, and ends them in order.

    starting --all up--> supervising --stop()--> stopping --> ended
       any death: reported by `first_death`    a death: restarted after a delay that doubles up to a bound

Services are told to drain first, together; the server goes last, since draining needs it.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from deploy.process import Process, ProcessSpec, describe_exit

Say = Callable[[str], None]
KILL_MARGIN_S = 2.0
SERVER_STOP_S = 10.0


@dataclass(frozen=True)
class Backoff:
    """Delay before a restart. A child that lived `healthy_s` starts over from `first_s`."""

    first_s: float = 0.5
    most_s: float = 15.0
    healthy_s: float = 30.0

    def next_delay_s(self, previous_s: float, lived_s: float) -> float:
        if previous_s == 0.0 or lived_s >= self.healthy_s:
            return self.first_s
        return min(previous_s * 2, self.most_s)


class Supervisor:
    """Holds the running children by name. After `stop` returned none of them is alive."""

    def __init__(self, say: Say, backoff: Backoff | None = None) -> None:
        self._say = say
        self._backoff = backoff or Backoff()
        self._running: dict[str, Process] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._server: str | None = None

    async def start(self, spec: ProcessSpec, *, is_server: bool = False) -> Process:
        process = await Process.start(spec)
        self._running[spec.name] = process
        if is_server:
            self._server = spec.name
        return process

    async def first_death(self) -> Process:
        """Waits until any child has ended and returns it. For the time before `supervise`."""
        waits = {asyncio.ensure_future(process.wait()): process for process in self._running.values()}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return waits[done.pop()]

    def supervise(self) -> None:
        """From now on a child that ends is started again."""
        self._keepers = [asyncio.create_task(self._keep(process)) for process in self._running.values()]

    async def _keep(self, process: Process) -> None:
        delay_s = 0.0
        while True:
            started = time.monotonic()
            code = await process.wait()
            delay_s = self._backoff.next_delay_s(delay_s, time.monotonic() - started)
            spec = process.spec
            self._say(
                f"{spec.name} ended ({describe_exit(code)}): starting it again in {delay_s:g} s, log {spec.log_path}"
            )
            await asyncio.sleep(delay_s)
            process = await self.start(spec, is_server=spec.name == self._server)
            self._say(f"{spec.name} started again (pid {process.pid})")

    async def stop(self, drain_timeout_s: float, hurry: asyncio.Event) -> None:
        """Services drain up to `drain_timeout_s` (cut short by `hurry`), then the server. Safe to call at any point."""
        await self._end_keepers()
        server = self._running.pop(self._server, None) if self._server else None
        services = list(self._running.values())
        await asyncio.gather(*(self._stop_service(process, drain_timeout_s, hurry) for process in services))
        if server is not None and not await server.stop(SERVER_STOP_S):
            self._say(f"{server.spec.name} did not end within {SERVER_STOP_S:g} s and was killed")
        self._running.clear()

    async def _end_keepers(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        self._keepers = []

    async def _stop_service(self, process: Process, drain_timeout_s: float, hurry: asyncio.Event) -> None:
        ended, hurried = asyncio.ensure_future(process.wait()), asyncio.ensure_future(hurry.wait())
        try:
            process.signal(signal.SIGTERM)
            await asyncio.wait(
                {ended, hurried}, timeout=drain_timeout_s + KILL_MARGIN_S, return_when=asyncio.FIRST_COMPLETED
            )
            if not ended.done():
                self._say(f"{process.spec.name} did not finish in time and was killed; its requests stay in the queue")
                process.kill()
                await ended
        finally:
            hurried.cancel()
