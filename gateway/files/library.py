"""Files: rows and bytes together. Bytes before the row, and the row gone before the bytes.

So a file that is found can be read, and what a crash leaves between the two are bytes without a row, which the sweep
takes away when they are a day old.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator

from gateway.files.blobs import BlobGone, Blobs
from gateway.files.intake import Intake
from gateway.store.batch_rows import BatchRows
from gateway.store.file_rows import FileRows, StoredFile
from gateway.store.paging import Page, Paged
from shared.errors import FileNotFound, InvalidRequest, Unavailable, UnsupportedParameter
from shared.servers.tasks import end_tasks

log = logging.getLogger(__name__)
BATCH, BATCH_OUTPUT = "batch", "batch_output"
MIN_TTL_S, MAX_TTL_S = 3600, 30 * 24 * 3600
_EXPIRES_AFTER = ("expires_after[anchor]", "expires_after[seconds]")
_FIELDS = frozenset({"purpose", *_EXPIRES_AFTER})
_SWEEP_PAGE = 200
_STRAY_S = 24 * 3600.0
_SWEEP_S = 60.0
_LOOK_FOR_STRAYS_EVERY = 60


class Library:
    """One a gateway process. start; stop."""

    def __init__(self, rows: FileRows, batches: BatchRows, blobs: Blobs, max_file_bytes: int) -> None:
        self.blobs = blobs
        self._rows = rows
        self._batches = batches
        self._max_file_bytes = max_file_bytes

    def start(self) -> None:
        self._sweeper = asyncio.create_task(self._sweep_forever())

    async def stop(self) -> None:
        await end_tasks(self._sweeper)

    async def receive(self, tenant: str, content_type: str, chunks: AsyncIterator[bytes]) -> StoredFile:
        """Takes in an upload. Raises InvalidRequest, BodyTooLarge, Unavailable: then nothing of it is kept."""
        file_id = new_file_id()
        intake = Intake(content_type, _FIELDS, self._max_file_bytes)
        async with self.blobs.writing(file_id) as blob:
            upload = await intake.read(chunks, blob.write)
            if upload.filename is None:
                raise InvalidRequest("file: is required", param="file")
            ttl_s = _checked(upload.fields)
            now_ms = time.time_ns() // 1_000_000
            expires_at_ms = now_ms + ttl_s * 1000 if ttl_s else None
            file = StoredFile(file_id, tenant, upload.filename, BATCH, blob.num_bytes, now_ms, expires_at_ms)
        await self._rows.add(file)
        return file

    async def find(self, file_id: str, tenant: str) -> StoredFile:
        """Raises FileNotFound, Unavailable."""
        return await self._rows.find(file_id, tenant)

    async def page(self, tenant: str, page: Page, purpose: str) -> Paged[StoredFile]:
        return await self._rows.page(tenant, page, purpose)

    async def open(self, file_id: str, tenant: str) -> tuple[StoredFile, AsyncGenerator[bytes]]:
        """A file and its bytes, of which the first are here. Raises FileNotFound, Unavailable."""
        file = await self._rows.find(file_id, tenant)
        chunks = self.blobs.read(file_id)
        try:
            first = await anext(chunks, b"")
        except BlobGone as error:
            raise FileNotFound(f"the bytes of file {file_id} are gone") from error
        return file, _joined(first, chunks)

    async def remove(self, file_id: str, tenant: str) -> None:
        """Raises FileNotFound, and InvalidRequest for the input of a batch under way."""
        await self._rows.find(file_id, tenant)
        if await self._batches.num_using(file_id):
            raise InvalidRequest(
                f"file {file_id} is the input of a batch under way: cancel that first", param="file_id"
            )
        await self._remove(file_id)

    async def sweep(self, *, strays_too: bool = False) -> int:
        """Removes files that are over, and bytes whose upload never ended. How many. Raises Unavailable."""
        gone = await self._rows.expired(_SWEEP_PAGE)
        for file_id in gone:
            await self._remove(file_id)
        if not strays_too:
            return len(gone)
        strays: list[str] = []
        old = await self.blobs.older_than(_STRAY_S)
        for page in (old[start : start + _SWEEP_PAGE] for start in range(0, len(old), _SWEEP_PAGE)):
            strays += set(page) - await self._rows.known(page)
        for blob_id in strays:
            await self.blobs.remove(blob_id)
        return len(gone) + len(strays)

    async def _remove(self, file_id: str) -> None:
        await self._rows.remove(file_id)
        await self.blobs.remove(file_id)

    async def _sweep_forever(self) -> None:
        turn = 0
        while True:
            await asyncio.sleep(_SWEEP_S)
            try:
                num_gone = await self.sweep(strays_too=turn % _LOOK_FOR_STRAYS_EVERY == 0)
                if num_gone:
                    log.info("files_swept", extra={"num_files": num_gone})
            except Unavailable as error:
                log.warning("files_not_swept", extra={"error": error.message})
            turn += 1


async def _joined(first: bytes, rest: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with contextlib.aclosing(rest):
        yield first
        async for chunk in rest:
            yield chunk


def new_file_id() -> str:
    return f"file-{secrets.token_hex(16)}"


def _checked(fields: dict[str, str]) -> int:
    """Seconds until it expires, 0 for never. Raises InvalidRequest."""
    purpose = fields.get("purpose")
    if purpose is None:
        raise InvalidRequest("purpose: is required", param="purpose")
    if purpose != BATCH:
        raise UnsupportedParameter(f"purpose: must be 'batch' on this server, not {purpose[:100]!r}", param="purpose")
    anchor, seconds = (fields.get(name) for name in _EXPIRES_AFTER)
    if anchor is None and seconds is None:
        return 0
    if anchor != "created_at":
        raise InvalidRequest("expires_after[anchor]: must be 'created_at'", param="expires_after[anchor]")
    if seconds is None or not seconds.isascii() or not seconds.isdigit() or len(seconds) > 9:
        raise InvalidRequest("expires_after[seconds]: must be an integer", param="expires_after[seconds]")
    if not MIN_TTL_S <= int(seconds) <= MAX_TTL_S:
        words = f"expires_after[seconds]: must be from {MIN_TTL_S} to {MAX_TTL_S}"
        raise InvalidRequest(words, param="expires_after[seconds]")
    return int(seconds)
