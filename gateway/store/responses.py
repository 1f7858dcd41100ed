"""Stored responses, as rows: added, read, ended once, deleted; and the unfinished ones that nobody looks after.

Whose a response is decides whether it is found. The first end that is written stands, whoever writes another. A lease
saves work and decides nothing: two gateways that end the same response write the same.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any, Literal

from sqlalchemy import Row, delete, insert, select, update

from gateway.store.database import Database
from gateway.store.schema import responses

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
UNFINISHED: tuple[Status, ...] = ("queued", "in_progress")


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """`request` and `input` are JSON; `journal` is empty until it has ended. Times are milliseconds since 1970."""

    id: str
    tenant: str
    request_id: str
    revision: str
    is_background: bool
    request: str = field(repr=False)
    input: str = field(repr=False)
    created_at_ms: int
    status: Status = "queued"
    journal: bytes = field(default=b"", repr=False)
    ended_at_ms: int = 0
    num_misses: int = 0

    @property
    def is_finished(self) -> bool:
        return self.status not in UNFINISHED


class ResponseRows:
    """All methods raise Unavailable."""

    def __init__(self, database: Database, ttl_s: int) -> None:
        self._database = database
        self._ttl_ms = ttl_s * 1000

    async def add(self, response: StoredResponse, *, leased_until_ms: int) -> None:
        """Once an id."""
        row = {
            "id": response.id,
            "tenant": response.tenant,
            "request_id": response.request_id,
            "revision": response.revision,
            "is_background": response.is_background,
            "request": response.request,
            "input": response.input,
            "status": response.status,
            "created_at_ms": response.created_at_ms,
            "expires_at_ms": response.created_at_ms + self._ttl_ms,
            "leased_until_ms": leased_until_ms,
        }
        async with self._database.writing() as connection:
            await connection.execute(insert(responses).values(row))

    async def find(self, response_id: str, tenant: str) -> StoredResponse | None:
        """None also for another tenant's."""
        async with self._database.reading() as connection:
            asked = select(responses).where(responses.c.id == response_id, responses.c.tenant == tenant)
            row = (await connection.execute(asked)).one_or_none()
        return None if row is None else _stored(row)

    async def end(self, response_id: str, status: Status, journal: bytes, ended_at_ms: int) -> None:
        """Nothing where it has ended before, or is deleted."""
        told = {"status": status, "journal": zlib.compress(journal, 1), "ended_at_ms": ended_at_ms}
        unfinished = (responses.c.id == response_id, responses.c.status.in_(UNFINISHED))
        async with self._database.writing() as connection:
            await connection.execute(update(responses).where(*unfinished).values(told))

    async def delete(self, response_id: str, tenant: str) -> bool:
        """Whether there was one."""
        mine = (responses.c.id == response_id, responses.c.tenant == tenant)
        async with self._database.writing() as connection:
            return (await connection.execute(delete(responses).where(*mine))).rowcount > 0

    async def lease(self, now_ms: int, until_ms: int, limit: int) -> list[StoredResponse]:
        """Unfinished ones whose lease has passed, leased to the caller until then."""
        late = (responses.c.status.in_(UNFINISHED), responses.c.leased_until_ms < now_ms)
        async with self._database.writing() as connection:
            asked = select(responses).where(*late).limit(limit).with_for_update(skip_locked=True)
            rows = (await connection.execute(asked)).all()
            ids = [row.id for row in rows]
            await connection.execute(update(responses).where(responses.c.id.in_(ids)).values(leased_until_ms=until_ms))
        return [_stored(row) for row in rows]

    async def miss(self, response_id: str) -> None:
        """It was not found in the queue, once more."""
        counted = {"num_misses": responses.c.num_misses + 1}
        async with self._database.writing() as connection:
            await connection.execute(update(responses).where(responses.c.id == response_id).values(counted))


def _stored(row: Row[Any]) -> StoredResponse:
    return StoredResponse(
        id=row.id,
        tenant=row.tenant,
        request_id=row.request_id,
        revision=row.revision,
        is_background=row.is_background,
        request=row.request,
        input=row.input,
        created_at_ms=row.created_at_ms,
        status=row.status,
        journal=zlib.decompress(row.journal) if row.journal else b"",
        ended_at_ms=row.ended_at_ms,
        num_misses=row.num_misses,
    )
