"""The SQL database behind what outlives its requests: a SQLite file, or a PostgreSQL that several hosts share.

Two kinds of transaction: `reading` and `writing`. A SQLite file has one writer at a time, from its first statement, so
none fails half-way for having read before it wrote; in PostgreSQL, lock the rows you decide by (`with_for_update`).
Whatever keeps the database from answering is Unavailable, with a time to come back; the rest of the gateway serves on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from gateway.store import migrate
from shared.errors import ConfigurationError, Unavailable
from shared.servers.store_address import StoreAddress
from shared.servers.tasks import end_tasks

log = logging.getLogger(__name__)
BUSY_TIMEOUT_S = 5.0
RETRY_S = 1.0
# Gateways that start at once on a new file may find it locked for a moment.
START_TRIES = 20
START_RETRY_S = 0.1
# An SQLite file has one writer at a time; more connections than this only wait for each other.
SQLITE_CONNECTIONS = 4
_AWAY = (DBAPIError, PoolTimeoutError, OSError, TimeoutError)
_IS_WRITING = "headrace_is_writing"


class Database:
    """One a gateway process. Until `start` has found the database and brought it up to date, all is Unavailable."""

    def __init__(self, address: StoreAddress) -> None:
        self._address = address
        self._engine = _engine(address)
        self._is_ready = False
        self._starting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns with the schema up to date; or, where nothing answers, keeps trying in the background.

        Raises ConfigurationError for what will not get better by waiting.
        """
        for _ in range(START_TRIES):
            if await self._try_migrate():
                return
            await asyncio.sleep(START_RETRY_S)
        log.warning("store_unreachable", extra={"store": self._address.shown})
        self._starting = asyncio.create_task(self._keep_trying())

    async def stop(self) -> None:
        if self._starting is not None:
            await end_tasks(self._starting)
        await self._engine.dispose()

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[AsyncConnection]:
        """One moment of the database. Raises Unavailable."""
        self._check_ready()
        with _answered():
            async with self._engine.begin() as connection:
                yield connection

    @asynccontextmanager
    async def writing(self) -> AsyncGenerator[AsyncConnection]:
        """All or nothing: committed when the block ends, undone when it raises. Raises Unavailable."""
        self._check_ready()
        async with self._writing() as connection:
            yield connection

    @asynccontextmanager
    async def _writing(self) -> AsyncGenerator[AsyncConnection]:
        with _answered():
            async with self._engine.connect() as connection:
                await connection.execution_options(**{_IS_WRITING: True})
                async with connection.begin():
                    yield connection

    def _check_ready(self) -> None:
        if not self._is_ready:
            raise Unavailable("the store is not reachable yet")

    async def _try_migrate(self) -> bool:
        try:
            with _answered():
                if self._address.path is not None:
                    self._address.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            async with self._writing() as connection:
                await connection.run_sync(migrate.upgrade)
        except ConfigurationError:
            await self._engine.dispose()
            raise
        except Unavailable as error:
            log.info("store_not_opened", extra={"store": self._address.shown, "error": error.message})
            return False
        self._is_ready = True
        return True

    async def _keep_trying(self) -> None:
        while True:
            await asyncio.sleep(RETRY_S)
            if await self._try_migrate():
                return


@contextmanager
def _answered() -> Generator[None]:
    try:
        yield
    except _AWAY as error:
        raise Unavailable(f"the store does not answer: {str(error).splitlines()[0][:200]}") from error


def _engine(address: StoreAddress) -> AsyncEngine:
    if address.path is None:
        return create_async_engine(address.url, pool_pre_ping=True, pool_timeout=BUSY_TIMEOUT_S)
    engine = create_async_engine(
        address.url,
        pool_size=SQLITE_CONNECTIONS,
        max_overflow=0,
        pool_timeout=BUSY_TIMEOUT_S,
        connect_args={"timeout": BUSY_TIMEOUT_S},
    )
    event.listen(engine.sync_engine, "connect", _on_connect)
    event.listen(engine.sync_engine, "begin", _on_begin)
    return engine


def _on_connect(connection: Any, _: object) -> None:
    """Transactions are begun by us (`_on_begin`), not guessed by the driver. WAL: readers and a writer side by side; a
    power cut may take the last moments with it, as it does in Redis."""
    connection.isolation_level = None
    cursor = connection.cursor()
    try:
        cursor.execute("PRAGMA synchronous=NORMAL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.execute("PRAGMA journal_mode=WAL")
    except BaseException:
        connection.close()
        raise
    cursor.close()


def _on_begin(connection: Connection) -> None:
    is_writing = connection.get_execution_options().get(_IS_WRITING, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writing else "BEGIN")
