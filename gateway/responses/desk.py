"""Stored responses between the queue, where they run, and the store, where they stay.

    kept --queue--> ended: by whoever saw its end first (its stream, its watcher, a GET, the finisher of any gateway)

An end follows from the journal alone, so whoever writes it writes the same; the first one stands. While a response
runs, its status is the queue's.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from typing import Protocol

from gateway.dispatch import Placed
from gateway.openai.responses.events import ResponseEvents
from gateway.responses.reading import read
from gateway.store.responses import ResponseRows, Status, StoredResponse
from shared.errors import HeadraceError, InvalidRequest, RequestNotFound, ResponseNotFound, Unavailable
from shared.registry import RequestRecord
from shared.schemas import EndFrame, Frame, State, encode_frames
from shared.servers.tasks import end_tasks

log = logging.getLogger(__name__)
# No other is ever given, and a database may stumble over what an id can hold in a URL.
_ID = re.compile(r"resp_[0-9a-zA-Z._-]{1,64}")


class Queue(Protocol):
    """What is asked of the dispatcher."""

    async def record(self, placed: Placed) -> RequestRecord: ...

    async def journal(self, placed: Placed) -> list[Frame]: ...

    async def cancel(self, request_id: str, tenant: str) -> str: ...

    def follow(self, request_id: str) -> AbstractAsyncContextManager[AsyncIterator[list[Frame]]]: ...


class ResponseDesk:
    """One a gateway process. What it raises beside the errors named is Unavailable."""

    def __init__(self, rows: ResponseRows, queue: Queue, lease_ms: int) -> None:
        self._rows = rows
        self._queue = queue
        self._lease_ms = lease_ms
        self._watchers: set[asyncio.Task[None]] = set()

    async def stop(self) -> None:
        """What runs in the background goes on; another gateway ends it."""
        await end_tasks(*self._watchers)

    async def keep(self, response: StoredResponse) -> None:
        """Before its request is admitted."""
        await self._rows.add(response, leased_until_ms=now_ms() + self._lease_ms)

    async def take_back(self, response: StoredResponse) -> None:
        """Its request was not admitted. What cannot be taken back now fails when the finisher does not find it."""
        with suppress(Unavailable):
            await self._rows.delete(response.id, response.tenant)

    async def find(self, response_id: str, tenant: str) -> StoredResponse:
        """As it stands now. Raises ResponseNotFound, also for another tenant's."""
        stored = await self._rows.find(response_id, tenant) if _ID.fullmatch(response_id) else None
        if stored is None:
            raise ResponseNotFound(f"Response with id '{response_id[:80]}' not found.")
        return await self.brought_up_to_date(stored)

    async def previous(self, previous_id: str, tenant: str) -> StoredResponse:
        """What a new response goes on from. Raises InvalidRequest when there is none, or it is not finished."""
        try:
            stored = await self.find(previous_id, tenant)
        except ResponseNotFound:
            words = f"Previous response with id '{previous_id[:80]}' not found."
            raise InvalidRequest(words, param="previous_response_id", code="previous_response_not_found") from None
        if not stored.is_finished:
            words = f"previous_response_id: '{stored.id}' is not finished yet"
            raise InvalidRequest(words, param="previous_response_id", code="previous_response_not_finished")
        return stored

    async def cancel(self, stored: StoredResponse) -> StoredResponse:
        """Ended when this returns; what had ended before stays as it was."""
        if stored.is_finished:
            return stored
        await self._queue.cancel(stored.request_id, stored.tenant)
        return await self.brought_up_to_date(stored)

    async def delete(self, stored: StoredResponse) -> None:
        """Of what runs, nothing is kept: it is cancelled."""
        if not stored.is_finished:
            with suppress(RequestNotFound):
                await self._queue.cancel(stored.request_id, stored.tenant)
        await self._rows.delete(stored.id, stored.tenant)

    async def end(self, stored: StoredResponse, events: ResponseEvents, frames: Sequence[Frame]) -> None:
        """The end of its journal was seen, and converted. If that cannot be written now, the finisher does it."""
        try:
            await self._rows.end(stored.id, _status(events.status), encode_frames(frames), events.ended_s * 1000)
        except Unavailable as error:
            log.warning("response_not_stored", extra={"response_id": stored.id, "error": error.message})

    def watch(self, stored: StoredResponse) -> None:
        """Follows it to its end in the background: as a client of this gateway that was submitted or joined for it."""
        task = asyncio.create_task(self._watch(stored))
        self._watchers.add(task)
        task.add_done_callback(self._watchers.discard)

    async def brought_up_to_date(self, stored: StoredResponse) -> StoredResponse:
        """With its state in the queue; ended here, if it has ended there. Where that is not known, as it is."""
        if stored.is_finished:
            return stored
        placed = Placed(stored.request_id, stored.revision)
        try:
            record = await self._queue.record(placed)
            if record.is_done:
                return await self._ended(stored, await self._queue.journal(placed), record.finished_at)
        except (RequestNotFound, Unavailable):
            return stored
        return replace(stored, status="queued" if record.state is State.WAITING else "in_progress")

    async def _ended(self, stored: StoredResponse, frames: Sequence[Frame], ended_at_ms: int) -> StoredResponse:
        if not frames or not isinstance(frames[-1], EndFrame):
            return stored
        status, journal = _status(read(stored, frames).status), encode_frames(frames)
        await self._rows.end(stored.id, status, journal, ended_at_ms)
        return replace(stored, status=status, journal=journal, ended_at_ms=ended_at_ms)

    async def _watch(self, stored: StoredResponse) -> None:
        frames: list[Frame] = []
        try:
            async with self._queue.follow(stored.request_id) as journal:
                async for batch in journal:
                    frames += batch
            await self.end(stored, read(stored, frames), frames)
        except HeadraceError as error:
            log.warning("response_not_watched", extra={"response_id": stored.id, "error": error.message})


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _status(text: str) -> Status:
    assert text in ("queued", "in_progress", "completed", "incomplete", "failed", "cancelled")
    return text
