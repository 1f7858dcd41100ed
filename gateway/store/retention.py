"""Deleting what has expired: every table of schema.EXPIRING, a bounded number of rows a transaction.

Every gateway does it; deleting twice is deleting once. What expired a moment ago may still be read.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress

from sqlalchemy import Table, delete, select

from gateway.store.database import Database
from gateway.store.schema import EXPIRING
from shared.errors import Unavailable
from shared.servers.tasks import end_tasks

log = logging.getLogger(__name__)
MAX_ROWS = 500


class Retention:
    """One a gateway process, between `start` and `stop`."""

    def __init__(self, database: Database, purge_s: float) -> None:
        self._database = database
        self._purge_s = purge_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            await end_tasks(self._task)

    async def purge(self, now_ms: int) -> int:
        """How many rows are gone that expired before `now_ms`. Raises Unavailable."""
        num_rows = 0
        for table in EXPIRING:
            while (deleted := await self._delete_some(table, now_ms)) > 0:
                num_rows += deleted
        return num_rows

    async def _run(self) -> None:
        while True:
            with suppress(Unavailable):
                num_rows = await self.purge(time.time_ns() // 1_000_000)
                if num_rows:
                    log.info("store_purged", extra={"num_rows": num_rows})
            await asyncio.sleep(self._purge_s)

    async def _delete_some(self, table: Table, now_ms: int) -> int:
        late = select(table.c.id).where(table.c.expires_at_ms < now_ms).limit(MAX_ROWS)
        async with self._database.writing() as connection:
            return (await connection.execute(delete(table).where(table.c.id.in_(late)))).rowcount
