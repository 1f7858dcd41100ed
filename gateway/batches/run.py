"""One batch computed under a lease, from wherever it is to its end.

    validate ─▶ feed: each line that has no answer ─▶ finish: its files, then its end

The store says how far it is: the status, the lines that have answers, up to which line some may be in the queue. So a
run that dies at any point is gone on with by another one, here or on another gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import replace

from gateway.batches.checking import check_file, file_gone
from gateway.batches.feeder import Feeder
from gateway.batches.means import Means
from gateway.batches.output import Output
from gateway.files.blobs import BlobGone
from gateway.store.batch_rows import ACTIVE, BatchStatus, StoredBatch
from gateway.store.batch_runs import Lease, LeaseGone
from shared.errors import Unavailable
from shared.servers.tasks import end_tasks

log = logging.getLogger(__name__)
_FORGET_PAGE = 500


class Run:
    """`batch` as it was when the lease was taken."""

    def __init__(self, means: Means, batch: StoredBatch) -> None:
        self.batch = batch
        self._means = means
        self._lease = Lease(batch.id, batch.fence)
        self._feeder = Feeder(means, batch, self._lease)

    def leave(self) -> None:
        """Soon `run` returns; what is in the queue goes on there."""
        self._feeder.leave()

    def stop(self) -> None:
        """It was cancelled: soon no line of it is under way."""
        self._feeder.stop()

    async def run(self) -> None:
        """To the batch's end, or until it is left, or the lease is gone. Raises Unavailable."""
        self._feeder.start()
        keeping = asyncio.create_task(self._keep())
        try:
            await self._compute()
        except BlobGone:
            await self._move(BatchStatus.FAILED, *ACTIVE, faults=[file_gone(self.batch)])
        except LeaseGone:
            log.warning("batch_lease_gone", extra={"batch_id": self.batch.id})
        finally:
            await self._feeder.close()
            await end_tasks(keeping)
            with contextlib.suppress(Unavailable):
                await self._means.runs.give_back(self._lease)

    async def _compute(self) -> None:
        status = self.batch.status
        if status is BatchStatus.VALIDATING:
            checked = await check_file(self._means, self.batch)
            then = BatchStatus.FAILED if checked.faults else BatchStatus.IN_PROGRESS
            found = {"faults": checked.faults, "num_lines": checked.num_lines}
            status = await self._move(then, BatchStatus.VALIDATING, **found)
            self.batch = replace(self.batch, num_lines=checked.num_lines)
        if status is BatchStatus.IN_PROGRESS:
            await self._feeder.feed(await self._means.runs.answered(self.batch.id))
            if self._feeder.is_left:
                return
            status = await self._move(BatchStatus.FINALIZING, BatchStatus.IN_PROGRESS)
        if status in (BatchStatus.FINALIZING, BatchStatus.CANCELLING):
            await self._finish(is_cancelled=status is BatchStatus.CANCELLING)

    async def _move(self, to: BatchStatus, *sources: BatchStatus, **values: object) -> BatchStatus:
        """The status it has then."""
        status = await self._means.runs.move(self._lease, to, _now_ms(), sources=sources, **values)
        log.info("batch_status", extra={"batch_id": self.batch.id, "status": status})
        return status

    async def _finish(self, *, is_cancelled: bool) -> None:
        """Everything has its place in one of two files, also what was not done."""
        done = await self._means.runs.answered(self.batch.id)
        await self._feeder.cancel_left_over(done)
        output = await Output(self._means, self.batch, is_cancelled=is_cancelled).write(done)
        status = BatchStatus.CANCELLED if is_cancelled else BatchStatus.COMPLETED
        if output.num_unanswered and not is_cancelled:
            status = BatchStatus.EXPIRED
        num_unanswered = output.num_unanswered
        await self._means.runs.end(self._lease, status, _now_ms(), made=output.files, num_unanswered=num_unanswered)
        log.info("batch_status", extra={"batch_id": self.batch.id, "status": status})
        while await self._means.runs.forget_answers(_FORGET_PAGE):
            pass

    async def _keep(self) -> None:
        """Renews the lease, learns of a cancellation, ends the window."""
        while True:
            left_s = (self.batch.window_ends_ms - _now_ms()) / 1000
            await asyncio.sleep(max(0.05, min(self._means.lease_s / 4, left_s)))
            try:
                status = await self._means.runs.renew(self._lease)
            except LeaseGone:
                self.leave()
                return
            except Unavailable as error:
                log.warning("batch_lease_not_renewed", extra={"batch_id": self.batch.id, "error": error.message})
                continue
            if status is BatchStatus.CANCELLING or _now_ms() >= self.batch.window_ends_ms:
                self.stop()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
