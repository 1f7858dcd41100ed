"""The lines of one batch on their way through the queue: put in one after the other, collected as they end.

One line at a time knocks at the queue: while it is refused the next ones wait behind it, so a full queue is asked by
one client and not by thousands. How many are under way is bounded by the room all batches of this gateway share.
Leaving (this gateway stops, or has lost the lease) lets the lines under way run on; stopping (cancelled, or the window
is over) cancels them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Collection

from gateway.batches.asking import Asker, Visit
from gateway.batches.lines import Line, parse_line
from gateway.batches.means import Means
from gateway.batches.recorder import Recorder
from gateway.http.options import part_key
from gateway.openai.protocol import MAX_PROMPTS
from gateway.store.batch_rows import StoredBatch
from gateway.store.batch_runs import Lease
from shared.errors import HeadraceError
from shared.servers.tasks import end_tasks

log = logging.getLogger(__name__)
# That so many more lines may be in the queue is told to the store at once, before they are.
_FED_PAGE = 256
_CANCEL_AGAIN_S = 0.25


class Feeder:
    """start; feed; then cancel_left_over where the batch was stopped; close."""

    def __init__(self, means: Means, batch: StoredBatch, lease: Lease) -> None:
        self._means = means
        self._batch = batch
        self._lease = lease
        self._asker = Asker(means, batch)
        self._recorder = Recorder(means.runs, lease)
        self._visits: dict[int, Visit] = {}
        self._asked: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_fed = batch.num_fed
        self._canceller: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None

    def start(self) -> None:
        self._recording = asyncio.create_task(self._recorder.run())

    async def close(self) -> None:
        """Leaves what is under way, in the queue as it is."""
        self.leave()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await end_tasks(self._recording, *([self._canceller] if self._canceller is not None else []))

    @property
    def is_left(self) -> bool:
        return self._asker.leaving.is_set()

    def leave(self) -> None:
        """Soon `feed` returns; what is in the queue goes on there."""
        self._asker.stopping.set()
        self._asker.leaving.set()

    def stop(self) -> None:
        """Soon `feed` returns, and no line of this batch is under way here."""
        self._asker.stopping.set()
        if self._canceller is None:
            self._canceller = asyncio.create_task(self._cancel_placed())

    async def feed(self, done: Collection[int]) -> None:
        """Returns when each line but the `done` ones has its answer, or feeding was stopped and none is under way.

        Raises LeaseGone, Unavailable, BlobGone.
        """
        async with contextlib.aclosing(self._lines()) as lines:
            async for line in lines:
                if line.number in done:
                    continue
                await self._means.room.acquire()
                if self._asker.stopping.is_set():
                    self._means.room.release()
                    break
                await self._place(line)
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._failure is not None:
            raise self._failure

    async def cancel_left_over(self, done: Collection[int]) -> None:
        """What another run of this batch has put into the queue, and nobody asks for any more. Raises Unavailable."""
        if not self._batch.num_fed:
            return
        async with contextlib.aclosing(self._lines()) as lines:
            async for line in lines:
                if line.number > self._batch.num_fed:
                    return
                if line.number not in done and line.number not in self._asked:
                    await self._cancel_run(line)

    async def _cancel_run(self, line: Line) -> None:
        key_hash, tenant = line.key_hash(self._batch.id), self._batch.tenant
        for index in range(min(line.num_prompts, MAX_PROMPTS)):
            await self._means.around.cancel_run(tenant, part_key(key_hash, index), line.digest)

    async def _lines(self) -> AsyncGenerator[Line]:
        max_bytes = self._means.max_line_bytes
        async with contextlib.aclosing(self._means.blobs.lines(self._batch.input_file_id, max_bytes)) as lines:
            async for number, raw in lines:
                yield parse_line(number, raw, self._batch.endpoint, max_bytes)

    async def _place(self, line: Line) -> None:
        """Returns when the line is in the queue, or over."""
        if line.number > self._num_fed:
            try:
                await self._means.runs.feed(self._lease, line.number + _FED_PAGE)
            except BaseException:
                self._means.room.release()
                raise
            self._num_fed = line.number + _FED_PAGE
        visit = self._visits[line.number] = Visit(line)
        self._asked.add(line.number)
        task = asyncio.create_task(self._answer(visit))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await visit.placed.wait()

    async def _answer(self, visit: Visit) -> None:
        self._means.metrics.batch_lines_in_flight.inc()
        try:
            answer = await self._asker.answer(visit)
            if answer is not None:
                await self._recorder.add(answer)
        except Exception as error:  # whatever it is ends the run: another one begins where this one was
            self._failure = self._failure or error
            self.leave()
        finally:
            del self._visits[visit.line.number]
            self._means.metrics.batch_lines_in_flight.dec()
            self._means.room.release()
            visit.placed.set()

    async def _cancel_placed(self) -> None:
        """Again and again: some are on their way into the queue."""
        while self._visits and not self.is_left:
            for request_id in [visit.request_id for visit in self._visits.values() if visit.request_id]:
                try:
                    await self._means.around.cancel(request_id, self._batch.tenant)
                except HeadraceError as error:
                    log.info("line_not_cancelled", extra={"request_id": request_id, "error": error.message})
            await asyncio.sleep(_CANCEL_AGAIN_S)
