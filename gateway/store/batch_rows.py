"""The rows of batches as clients see and change them: made, found, listed, cancelled.

Who computes one changes it through batch_runs.py alone, under a lease.

    validating ──▶ in_progress ──▶ finalizing ──▶ completed | expired
        │  │            │
        │  └──▶ failed  │
        └──────┴──▶ cancelling ──▶ cancelled
"""

from __future__ import annotations

import enum
import json
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import RowMapping, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.store.database import Database
from gateway.store.paging import Page, Paged, read_page
from gateway.store.schema import batches
from shared.errors import BatchNotFound, InvalidRequest


class BatchStatus(enum.StrEnum):
    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


ACTIVE = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, BatchStatus.CANCELLING)
_CAN_BE_CANCELLED = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatch:
    """`key_digest`: the SHA-256 of the API key it was made with, '' for none. `times`: when each status began.

    Times are milliseconds since 1970: `window_ends_ms` is when what is not done expires, `expires_at_ms` when the row
    may go. `num_fed`: lines up to this one may be in the queue. `fence`, `beat` and `owner`: see batch_runs.py.
    `usage`: tokens, summed over its lines, once it is over.
    """

    id: str
    tenant: str
    key_digest: str
    endpoint: str
    input_file_id: str
    created_at_ms: int
    window_ends_ms: int
    expires_at_ms: int
    status: BatchStatus = BatchStatus.VALIDATING
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    output_ttl_s: int = 0
    output_file_id: str = ""
    error_file_id: str = ""
    faults: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    times: dict[str, int] = field(default_factory=dict[str, int])
    num_lines: int = 0
    num_completed: int = 0
    num_failed: int = 0
    num_fed: int = 0
    owner: str = ""
    fence: int = 0
    beat: int = 0
    usage: dict[str, int] = field(default_factory=dict[str, int])


_AS_JSON = ("metadata", "faults", "times", "usage")


class BatchRows:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, batch: StoredBatch) -> None:
        values = asdict(batch)
        values |= {name: json.dumps(values[name]) for name in _AS_JSON}
        async with self._database.writing() as connection:
            await connection.execute(insert(batches).values(values))

    async def find(self, batch_id: str, tenant: str) -> StoredBatch:
        """Raises BatchNotFound."""
        async with self._database.reading() as connection:
            return await _find(connection, batch_id, tenant)

    async def page(self, tenant: str, page: Page) -> Paged[StoredBatch]:
        async with self._database.reading() as connection:
            return await read_page(connection, batches, [batches.c.tenant == tenant], page, batch_of)

    async def cancel(self, batch_id: str, tenant: str, now_ms: int) -> StoredBatch:
        """Repeated: the same. Raises BatchNotFound, and InvalidRequest for one that is over or about to be."""
        async with self._database.writing() as connection:
            batch = await _find(connection, batch_id, tenant)
            if batch.status in _CAN_BE_CANCELLED:
                times = json.dumps({**batch.times, BatchStatus.CANCELLING: now_ms})
                change = update(batches).where(batches.c.id == batch_id, batches.c.status == batch.status)
                await connection.execute(change.values(status=BatchStatus.CANCELLING, times=times))
                batch = await _find(connection, batch_id, tenant)
        if batch.status in (BatchStatus.CANCELLING, BatchStatus.CANCELLED):
            return batch
        raise InvalidRequest(f"batch {batch_id} is {batch.status} and cannot be cancelled", param="batch_id")

    async def num_using(self, file_id: str) -> int:
        """Batches under way that read this file."""
        statement = select(batches.c.id).where(batches.c.input_file_id == file_id, batches.c.status.in_(ACTIVE))
        async with self._database.reading() as connection:
            return len((await connection.execute(statement)).all())


def batch_of(row: RowMapping) -> StoredBatch:
    values: dict[str, Any] = dict(row)
    values |= {name: json.loads(values[name]) for name in _AS_JSON}
    values["status"] = BatchStatus(values["status"])
    return StoredBatch(**values)


async def _find(connection: AsyncConnection, batch_id: str, tenant: str) -> StoredBatch:
    statement = select(batches).where(batches.c.id == batch_id, batches.c.tenant == tenant)
    row = (await connection.execute(statement)).mappings().first()
    if row is None:
        raise BatchNotFound(f"batch {batch_id[:80]} does not exist")
    return batch_of(row)
