"""What the served models of one worker process have in common, and how they wait for it.

Each model has its own registration, lease, bell and emit in flight; server, engine and settings are one for all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from shared.config import WorkerSettings
from shared.redis_client import AWAY, Client, Scripts
from worker.condition.phase import Standing
from worker.condition.quarantine import Quarantine
from worker.shares import Shares
from worker.telemetry import Telemetry

log = logging.getLogger(__name__)
T = TypeVar("T")
RETRY_S = 0.5


class StoppedWaiting(Exception):
    """Told to stop while the server is away."""


@dataclass(frozen=True, slots=True)
class Host:
    """`on_order` obeys what an operator told one of the models: the command's name and its arguments."""

    settings: WorkerSettings
    scripts: Scripts
    bell: Client
    shares: Shares
    telemetry: Telemetry
    on_order: Callable[[str, list[str]], None]
    standing: Standing
    quarantine: Quarantine


async def until_answered(call: Callable[[], Awaitable[T]], stop: asyncio.Event) -> T:
    """What the server says, however long it is away. Raises StoppedWaiting when `stop` is set while it is."""
    while True:
        try:
            return await call()
        except AWAY as error:
            log.warning("redis_away", extra={"error": str(error)})
            if stop.is_set():
                raise StoppedWaiting from error
            await asyncio.sleep(RETRY_S)


async def first_of(wanted: asyncio.Future[Any], *others: asyncio.Future[Any], timeout_s: float | None = None) -> None:
    """Waits for `wanted`; a task that ended instead has failed, and its error is raised."""
    done, _ = await asyncio.wait((wanted, *others), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for future in done:
        if future is not wanted:
            future.result()
