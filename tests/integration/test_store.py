"""The store on a real file: migrations, transactions, several gateways at once, what expires."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, func, insert, select, text

from gateway.store.database import Database
from gateway.store.retention import Retention
from gateway.store.schema import metadata, responses
from shared.errors import ConfigurationError, Unavailable
from shared.servers.store_address import StoreAddress, parse_store


@contextlib.asynccontextmanager
async def opened(address: StoreAddress) -> AsyncGenerator[Database]:
    database = Database(address)
    await database.start()
    try:
        yield database
    finally:
        await database.stop()


def row(response_id: str, **fields: Any) -> dict[str, Any]:
    kept = {"tenant": "t", "status": "completed", "is_background": False, "request": "{}", "input": "[]"}
    about = {"id": response_id, "request_id": response_id, "revision": "m@1"}
    return {**about, **kept, "created_at_ms": 1, "expires_at_ms": 10, **fields}


async def count(database: Database) -> int:
    async with database.reading() as connection:
        return (await connection.execute(select(func.count()).select_from(responses))).scalar_one()


async def test_several_gateways_may_start_at_once(store: StoreAddress) -> None:
    async with contextlib.AsyncExitStack() as stack:
        databases = await asyncio.gather(*(stack.enter_async_context(opened(store)) for _ in range(4)))
        assert [await count(database) for database in databases] == [0] * 4


async def test_the_migrations_make_the_schema(store: StoreAddress) -> None:
    def differences(connection: Connection) -> list[Any]:
        return compare_metadata(MigrationContext.configure(connection), metadata)

    async with opened(store) as database, database.reading() as connection:
        assert await connection.run_sync(differences) == []


async def test_a_schema_of_a_newer_version_is_refused(store: StoreAddress) -> None:
    async with opened(store) as database, database.writing() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(ConfigurationError, match="HEADRACE_STORE_URL"):
        async with opened(store):
            pass


async def test_what_was_written_is_there_after_a_restart(store: StoreAddress) -> None:
    async with opened(store) as database, database.writing() as connection:
        await connection.execute(insert(responses).values(row("a")))
    async with opened(store) as database:
        assert await count(database) == 1


async def test_a_transaction_that_fails_leaves_nothing(store: StoreAddress) -> None:
    async with opened(store) as database:
        with pytest.raises(KeyError):
            async with database.writing() as connection:
                await connection.execute(insert(responses).values(row("a")))
                raise KeyError
        assert await count(database) == 0


async def test_writers_on_one_file_wait_for_each_other(tmp_path: Path) -> None:
    async def read_then_write(database: Database, number: int) -> None:
        async with database.writing() as connection:
            known = (await connection.execute(select(func.count()).select_from(responses))).scalar_one()
            await connection.execute(insert(responses).values(row(f"{number}", created_at_ms=known)))

    async with opened(parse_store("", str(tmp_path))) as one, opened(parse_store("", str(tmp_path))) as other:
        await asyncio.gather(*(read_then_write(database, n) for n, database in enumerate([one, other] * 10)))
        async with one.reading() as connection:
            seen = (await connection.execute(select(responses.c.created_at_ms))).scalars().all()
        assert sorted(seen) == list(range(20))


async def test_only_what_has_expired_is_deleted(store: StoreAddress) -> None:
    async with opened(store) as database:
        async with database.writing() as connection:
            await connection.execute(insert(responses), [row(f"{n}", expires_at_ms=n) for n in range(1200)])
        assert await Retention(database, purge_s=60).purge(now_ms=1100) == 1100
        assert await count(database) == 100


async def test_a_store_that_cannot_be_opened_is_unavailable_and_tried_again(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where a folder should be")
    async with opened(parse_store("", str(tmp_path / "data"))) as database:
        with pytest.raises(Unavailable):
            async with database.reading():
                pass
        (tmp_path / "data").unlink()
        await asyncio.wait_for(database._starting, 10)  # type: ignore[arg-type]
        assert await count(database) == 0
