"""A named worker whose starts end early, one after another, is slow to take requests: a crash loop must not eat them.

A start is written down before anything is loaded, and taken back when it has lived, or was told to end; so whatever
kills the process counts, also what no process survives to tell. Without a name nothing is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket

from shared.config import WorkerSettings
from shared.redis_client import AWAY
from shared.registry import Registry
from worker.condition.quarantine import Quarantine
from worker.serving.host import until_answered

LIVED_S = 60.0
_MOST_DOUBLINGS = 6


class Starts:
    """`begin` before loading, `judge` when loaded, `lived` as a task while it serves, `end` when told to end."""

    def __init__(self, registry: Registry, settings: WorkerSettings) -> None:
        self._registry = registry
        self._settings = settings
        self._run = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self.num_early = 0

    async def begin(self, stop: asyncio.Event) -> None:
        s = self._settings
        if s.worker_name:
            begun = self._registry.begin_run
            self.num_early = await until_answered(lambda: begun(s.worker_name, self._run, s.quarantine_window_s), stop)

    def judge(self, quarantine: Quarantine) -> None:
        """So many early ends are too many: the pause doubles with each more."""
        limit = self._settings.quarantine_failures
        if 0 < limit <= self.num_early:
            pause_s = self._settings.quarantine_pause_s * 2 ** min(self.num_early - limit, _MOST_DOUBLINGS)
            why = f"{self.num_early} starts of {self._settings.worker_name} ended early"
            quarantine.begin(why, pause_s=min(300.0, pause_s))

    async def lived(self) -> None:
        """For ever."""
        await asyncio.sleep(LIVED_S)
        await self.end()
        await asyncio.Event().wait()

    async def end(self) -> None:
        if self._settings.worker_name:
            with contextlib.suppress(*AWAY):
                await self._registry.end_run(self._settings.worker_name, self._run)
