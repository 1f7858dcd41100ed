"""Answers on their way into the store: whatever came while one transaction ran goes with the next.

An answer counts when `add` returns. A store that is away is waited for; a lease that is gone ends it for good.
"""

from __future__ import annotations

import asyncio
import logging

from gateway.store.batch_runs import Answer, BatchRuns, Lease, LeaseGone
from shared.errors import Unavailable

log = logging.getLogger(__name__)
_PAGE = 200
_RETRY_S = 1.0


class Recorder:
    """Of one batch. `run` is a task as long as there may be answers."""

    def __init__(self, runs: BatchRuns, lease: Lease) -> None:
        self._runs = runs
        self._lease = lease
        self._waiting: list[tuple[Answer, asyncio.Future[None]]] = []
        self._has_some = asyncio.Event()
        self._is_lost = False

    async def add(self, answer: Answer) -> None:
        """Raises LeaseGone: then it does not count."""
        if self._is_lost:
            raise LeaseGone(self._lease.batch_id)
        recorded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((answer, recorded))
        self._has_some.set()
        await recorded

    async def run(self) -> None:
        """Until it is cancelled, or the lease is gone: raises LeaseGone."""
        try:
            while True:
                await self._has_some.wait()
                page, self._waiting = self._waiting[:_PAGE], self._waiting[_PAGE:]
                if not self._waiting:
                    self._has_some.clear()
                await self._record(page)
        except LeaseGone as error:
            self._is_lost = True
            _settle(self._waiting, error)
            raise

    async def _record(self, page: list[tuple[Answer, asyncio.Future[None]]]) -> None:
        answers = [answer for answer, _ in page]
        while True:
            try:
                await self._runs.record(self._lease, answers)
                _settle(page, None)
                return
            except Unavailable as error:
                log.warning("answers_not_recorded", extra={"batch_id": self._lease.batch_id, "error": error.message})
                await asyncio.sleep(_RETRY_S)
            except LeaseGone as error:
                _settle(page, error)
                raise


def _settle(page: list[tuple[Answer, asyncio.Future[None]]], error: Exception | None) -> None:
    for _, recorded in page:
        if recorded.done():
            continue
        if error is None:
            recorded.set_result(None)
        else:
            recorded.set_exception(error)
