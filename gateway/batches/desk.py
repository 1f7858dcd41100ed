"""What clients ask of batches: make one, find, list, cancel. Who computes them is the crew, told when there is news."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection

from gateway.batches.asking import require_batches
from gateway.batches.protocol import BatchRequest
from gateway.files.library import BATCH, Library
from gateway.store.batch_rows import BatchRows, StoredBatch
from gateway.store.paging import Page, Paged
from shared.access.entries import KeyEntry, Tenant
from shared.errors import FileNotFound, InvalidRequest

WINDOW_MS = 24 * 3600 * 1000
_MAX_METADATA_KEY, _MAX_METADATA_VALUE = 64, 512


class Desk:
    """`endpoints`: of which there may be batches. `on_news` is called when the crew should look. `keep_s`: how long a
    batch is known after its window."""

    def __init__(
        self, rows: BatchRows, library: Library, endpoints: Collection[str], on_news: Callable[[], None], keep_s: int
    ) -> None:
        self._rows = rows
        self._library = library
        self._endpoints = sorted(endpoints)
        self._on_news = on_news
        self._keep_ms = keep_s * 1000

    async def make(self, tenant: Tenant, body: BatchRequest) -> StoredBatch:
        """Durable when this returns. Raises InvalidRequest, PermissionDenied, Unavailable."""
        require_batches(tenant)
        if body.endpoint not in self._endpoints:
            words = f"endpoint: must be one of {', '.join(self._endpoints)}"
            raise InvalidRequest(words, param="endpoint")
        _check_metadata(body.metadata)
        await self._check_input(tenant, body.input_file_id)
        now_ms = time.time_ns() // 1_000_000
        batch = StoredBatch(
            id=f"batch_{secrets.token_hex(16)}",
            tenant=tenant.name,
            key_digest=tenant.sha256 if isinstance(tenant, KeyEntry) else "",
            endpoint=body.endpoint,
            input_file_id=body.input_file_id,
            created_at_ms=now_ms,
            window_ends_ms=now_ms + WINDOW_MS,
            expires_at_ms=now_ms + WINDOW_MS + self._keep_ms,
            metadata=body.metadata,
            output_ttl_s=body.output_expires_after.seconds if body.output_expires_after else 0,
        )
        await self._rows.add(batch)
        self._on_news()
        return batch

    async def find(self, batch_id: str, tenant: str) -> StoredBatch:
        """Raises BatchNotFound, also for another tenant's."""
        return await self._rows.find(batch_id, tenant)

    async def page(self, tenant: str, page: Page) -> Paged[StoredBatch]:
        return await self._rows.page(tenant, page)

    async def cancel(self, batch_id: str, tenant: str) -> StoredBatch:
        """Raises BatchNotFound, and InvalidRequest for one that is over."""
        batch = await self._rows.cancel(batch_id, tenant, time.time_ns() // 1_000_000)
        self._on_news()
        return batch

    async def _check_input(self, tenant: Tenant, file_id: str) -> None:
        try:
            file = await self._library.find(file_id, tenant.name)
        except FileNotFound as error:
            raise InvalidRequest(f"input_file_id: {error.message}", param="input_file_id") from error
        if file.purpose != BATCH:
            words = f"input_file_id: is a file for {file.purpose}, not for {BATCH}"
            raise InvalidRequest(words, param="input_file_id")


def _check_metadata(metadata: dict[str, str]) -> None:
    for name, value in metadata.items():
        if not 0 < len(name) <= _MAX_METADATA_KEY or len(value) > _MAX_METADATA_VALUE:
            words = (
                f"metadata: keys have 1 to {_MAX_METADATA_KEY} characters, values at most {_MAX_METADATA_VALUE}, "
                f"which {name[:_MAX_METADATA_KEY]!r} does not"
            )
            raise InvalidRequest(words, param="metadata")
