"""Which batches this gateway computes: it looks for those that nobody does, and runs them.

Every gateway does so. A batch that is free is taken at once; one whose owner has shown no life for a lease, then (see
gateway/store/batch_runs.py). No more than MAX_RUNS at a time, of many tenants rather than of one, the oldest first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter

from gateway.batches.means import Means
from gateway.batches.run import Run
from gateway.store.batch_rows import BatchStatus
from gateway.store.batch_runs import Standing
from shared.errors import Unavailable
from shared.servers.tasks import end_tasks

log = logging.getLogger(__name__)
MAX_RUNS = 32


class Crew:
    """One a gateway process. start; nudge when there may be news; stop."""

    def __init__(self, means: Means, gateway: str) -> None:
        self._means = means
        self._gateway = gateway
        self._runs: dict[str, Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._watched: dict[str, tuple[Standing, float]] = {}
        self._not_before: dict[str, float] = {}
        self._news = asyncio.Event()

    def start(self) -> None:
        self._looking = asyncio.create_task(self._look_forever())

    async def stop(self) -> None:
        """Batches are given back; their lines go on in the queue."""
        await end_tasks(self._looking)
        for run in self._runs.values():
            run.leave()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def nudge(self) -> None:
        """A batch was made or cancelled: look now."""
        self._news.set()

    async def _look_forever(self) -> None:
        while True:
            self._news.clear()
            try:
                await self.look()
            except Unavailable as error:
                log.warning("batches_not_looked_at", extra={"error": error.message})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), self._means.lease_s / 4)

    async def look(self) -> None:
        """Take what is free, tell the own runs what was cancelled. Raises Unavailable."""
        active = await self._means.runs.active()
        free = [standing for standing in active if self._is_free(standing)]
        for standing in active:
            run = self._runs.get(standing.batch_id)
            if run is not None and standing.status is BatchStatus.CANCELLING:
                run.stop()
        self._watched = {s.batch_id: self._watched[s.batch_id] for s in active}
        while free and len(self._runs) < MAX_RUNS:
            tenants = Counter(run.batch.tenant for run in self._runs.values())
            free.remove(chosen := min(free, key=lambda standing: tenants[standing.tenant]))
            batch = await self._means.runs.take(chosen, self._gateway)
            if batch is not None:
                log.info("batch_taken", extra={"batch_id": batch.id, "status": batch.status, "fence": batch.fence})
                self._spawn(Run(self._means, batch))

    def _is_free(self, seen: Standing) -> bool:
        """Also notes since when a batch stands as it does."""
        now = time.monotonic()
        before, since = self._watched.get(seen.batch_id, (None, now))
        if before != seen:
            since = now
        self._watched[seen.batch_id] = (seen, since)
        if seen.batch_id in self._runs or now < self._not_before.get(seen.batch_id, 0.0):
            return False
        return not seen.owner or now - since >= self._means.lease_s

    def _spawn(self, run: Run) -> None:
        self._runs[run.batch.id] = run
        self._means.metrics.batches_running.set(len(self._runs))
        task = asyncio.create_task(self._run(run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, run: Run) -> None:
        """A run that fails is tried again, here or elsewhere, after a pause."""
        batch_id = run.batch.id
        self._not_before.pop(batch_id, None)
        try:
            await run.run()
        except Unavailable as error:
            self._not_before[batch_id] = time.monotonic() + self._means.lease_s / 4
            log.warning("batch_interrupted", extra={"batch_id": batch_id, "error": error.message})
        except Exception:
            self._not_before[batch_id] = time.monotonic() + self._means.lease_s
            log.exception("batch_run_crashed", extra={"batch_id": batch_id})
        finally:
            del self._runs[batch_id]
            self._means.metrics.batches_running.set(len(self._runs))
            self._news.set()
