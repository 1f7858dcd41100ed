"""The rows of files: whose one is, what it is called, how long it is kept. Its bytes are elsewhere (gateway/files).

A file of another tenant, or one that has expired, is not there.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import ColumnElement, RowMapping, delete, insert, or_, select

from gateway.store.database import Database
from gateway.store.paging import Page, Paged, read_page
from gateway.store.schema import files
from shared.errors import FileNotFound


@dataclass(frozen=True, slots=True)
class StoredFile:
    """`expires_at_ms` None: kept until it is deleted. Times are milliseconds since 1970."""

    id: str
    tenant: str
    filename: str
    purpose: str
    num_bytes: int
    created_at_ms: int
    expires_at_ms: int | None = None


class FileRows:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, file: StoredFile) -> None:
        async with self._database.writing() as connection:
            await connection.execute(insert(files).values(values_of(file)))

    async def find(self, file_id: str, tenant: str) -> StoredFile:
        """Raises FileNotFound."""
        statement = select(files).where(files.c.id == file_id, files.c.tenant == tenant, _lives())
        async with self._database.reading() as connection:
            row = (await connection.execute(statement)).mappings().first()
        if row is None:
            raise FileNotFound(f"file {file_id[:80]} does not exist")
        return _file_of(row)

    async def page(self, tenant: str, page: Page, purpose: str = "") -> Paged[StoredFile]:
        wanted: list[ColumnElement[bool]] = [files.c.tenant == tenant, _lives()]
        if purpose:
            wanted.append(files.c.purpose == purpose)
        async with self._database.reading() as connection:
            return await read_page(connection, files, wanted, page, _file_of)

    async def remove(self, file_id: str) -> bool:
        """False: it was not there (any more)."""
        async with self._database.writing() as connection:
            return (await connection.execute(delete(files).where(files.c.id == file_id))).rowcount == 1

    async def expired(self, limit: int) -> list[str]:
        """Ids of some that are over."""
        statement = select(files.c.id).where(files.c.expires_at_ms <= _now_ms()).limit(limit)
        async with self._database.reading() as connection:
            return list((await connection.execute(statement)).scalars())

    async def known(self, file_ids: list[str]) -> set[str]:
        """Those of `file_ids` that have a row."""
        statement = select(files.c.id).where(files.c.id.in_(file_ids))
        async with self._database.reading() as connection:
            return set((await connection.execute(statement)).scalars())


def values_of(file: StoredFile) -> dict[str, Any]:
    """As a row."""
    return asdict(file)


def _lives() -> ColumnElement[bool]:
    return or_(files.c.expires_at_ms.is_(None), files.c.expires_at_ms > _now_ms())


def _file_of(row: RowMapping) -> StoredFile:
    return StoredFile(**row)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
