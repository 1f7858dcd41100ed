"""Batches as who computes them sees them: a lease, a durable cursor, one answer a line.

A lease is a number, `fence`, that grows with each taking: whoever lost it changes nothing any more, since every write
asks for its own. A batch is free when nobody owns it, or when its `beat`, which each write moves, has stood still for
as long as a lease by the watcher's own clock: no clocks are compared. Invariant: a line has at most one answer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.store.batch_rows import ACTIVE, BatchStatus, StoredBatch, batch_of
from gateway.store.database import Database
from gateway.store.file_rows import StoredFile, values_of
from gateway.store.schema import batch_answers, batches, files


class LeaseGone(Exception):
    """Another gateway has taken the batch, or its row is gone."""


@dataclass(frozen=True, slots=True)
class Lease:
    batch_id: str
    fence: int


@dataclass(frozen=True, slots=True)
class Standing:
    """An active batch as a watcher sees it. An equal one, a lease later: nobody lives there."""

    batch_id: str
    tenant: str
    status: BatchStatus
    owner: str
    fence: int
    beat: int


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """None: there was nothing to put into it. `usage`: what their lines say they used, summed."""

    output: StoredFile | None = None
    errors: StoredFile | None = None
    usage: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class Answer:
    """`text`: the line of the output file, or of the error file where `is_ok` is false."""

    line: int
    is_ok: bool
    text: str


class BatchRuns:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def active(self) -> list[Standing]:
        """All that are not over, the oldest first."""
        c = batches.c
        statement = select(c.id, c.tenant, c.status, c.owner, c.fence, c.beat).where(c.status.in_(ACTIVE))
        async with self._database.reading() as connection:
            rows = (await connection.execute(statement.order_by(c.created_at_ms, c.id))).all()
        return [Standing(batch_id, tenant, BatchStatus(status), *rest) for batch_id, tenant, status, *rest in rows]

    async def take(self, seen: Standing, owner: str) -> StoredBatch | None:
        """None: it has moved since it was seen."""
        mine = update(batches).where(
            batches.c.id == seen.batch_id, batches.c.fence == seen.fence, batches.c.beat == seen.beat
        )
        async with self._database.writing() as connection:
            taken = await connection.execute(mine.values(owner=owner, fence=seen.fence + 1))
            if taken.rowcount != 1:
                return None
            return await _read(connection, seen.batch_id)

    async def renew(self, lease: Lease) -> BatchStatus:
        """Raises LeaseGone."""
        async with self._database.writing() as connection:
            return (await _fenced(connection, lease)).status

    async def give_back(self, lease: Lease) -> None:
        """Free at once. Repeated, or with another owner: nothing."""
        mine = update(batches).where(batches.c.id == lease.batch_id, batches.c.fence == lease.fence)
        async with self._database.writing() as connection:
            await connection.execute(mine.values(owner=""))

    async def move(
        self, lease: Lease, status: BatchStatus, now_ms: int, *, sources: Sequence[BatchStatus], **values: Any
    ) -> BatchStatus:
        """Into `status` if it is in one of `sources`; the status it has then. Raises LeaseGone."""
        async with self._database.writing() as connection:
            batch = await _fenced(connection, lease)
            if batch.status not in sources:
                return batch.status
            await _set(connection, lease, status=status, times={**batch.times, status: now_ms}, **values)
            return status

    async def feed(self, lease: Lease, num_fed: int) -> None:
        """Before lines up to this one are put into the queue. Raises LeaseGone."""
        async with self._database.writing() as connection:
            await _fenced(connection, lease)
            await _set(connection, lease, num_fed=num_fed)

    async def record(self, lease: Lease, answers: Sequence[Answer]) -> None:
        """Each once, however often it is said. Raises LeaseGone."""
        async with self._database.writing() as connection:
            batch = await _fenced(connection, lease)
            lines = [answer.line for answer in answers]
            known = select(batch_answers.c.line).where(
                batch_answers.c.batch_id == lease.batch_id, batch_answers.c.line.in_(lines)
            )
            there = set((await connection.execute(known)).scalars())
            new = [answer for answer in answers if answer.line not in there]
            if not new:
                return
            rows = [{"batch_id": lease.batch_id, "line": a.line, "is_ok": a.is_ok, "text": a.text} for a in new]
            await connection.execute(insert(batch_answers), rows)
            num_ok = sum(answer.is_ok for answer in new)
            counts = {
                "num_completed": batch.num_completed + num_ok,
                "num_failed": batch.num_failed + len(new) - num_ok,
            }
            await _set(connection, lease, **counts)

    async def answered(self, batch_id: str) -> set[int]:
        """The lines that have an answer."""
        statement = select(batch_answers.c.line).where(batch_answers.c.batch_id == batch_id)
        async with self._database.reading() as connection:
            return set((await connection.execute(statement)).scalars())

    async def answers(self, batch_id: str, after: int, limit: int) -> list[Answer]:
        """Some, by line, from behind `after`."""
        columns = (batch_answers.c.line, batch_answers.c.is_ok, batch_answers.c.text)
        wanted = select(*columns).where(batch_answers.c.batch_id == batch_id, batch_answers.c.line > after)
        async with self._database.reading() as connection:
            rows = (await connection.execute(wanted.order_by(batch_answers.c.line).limit(limit))).all()
        return [Answer(line, bool(is_ok), text) for line, is_ok, text in rows]

    async def end(
        self, lease: Lease, status: BatchStatus, now_ms: int, *, made: BatchFiles, num_unanswered: int
    ) -> None:
        """The end and its files, together. Raises LeaseGone."""
        async with self._database.writing() as connection:
            batch = await _fenced(connection, lease)
            for file in (made.output, made.errors):
                if file is not None:
                    await connection.execute(insert(files).values(values_of(file)))
            await _set(
                connection, lease, status=status, times={**batch.times, status: now_ms}, owner="",
                output_file_id=made.output.id if made.output else "",
                error_file_id=made.errors.id if made.errors else "",
                num_failed=batch.num_failed + num_unanswered, usage=made.usage,
            )  # fmt: skip

    async def forget_answers(self, limit: int) -> int:
        """Of batches that are over: their files have them. How many are gone."""
        over = select(batches.c.id).where(batches.c.status.in_(ACTIVE))
        statement = select(batch_answers.c.batch_id, batch_answers.c.line).where(batch_answers.c.batch_id.not_in(over))
        async with self._database.writing() as connection:
            rows = (await connection.execute(statement.limit(limit))).all()
            by_batch: dict[str, list[int]] = {}
            for batch_id, line in rows:
                by_batch.setdefault(batch_id, []).append(line)
            for batch_id, lines in by_batch.items():
                mine = delete(batch_answers).where(batch_answers.c.batch_id == batch_id)
                await connection.execute(mine.where(batch_answers.c.line.in_(lines)))
        return len(rows)


async def _fenced(connection: AsyncConnection, lease: Lease) -> StoredBatch:
    """The row, locked for this transaction and beaten. Raises LeaseGone."""
    mine = update(batches).where(batches.c.id == lease.batch_id, batches.c.fence == lease.fence)
    if (await connection.execute(mine.values(beat=batches.c.beat + 1))).rowcount != 1:
        raise LeaseGone(lease.batch_id)
    return await _read(connection, lease.batch_id)


async def _read(connection: AsyncConnection, batch_id: str) -> StoredBatch:
    row = (await connection.execute(select(batches).where(batches.c.id == batch_id))).mappings().one()
    return batch_of(row)


async def _set(connection: AsyncConnection, lease: Lease, **values: Any) -> None:
    row = {name: json.dumps(value) if isinstance(value, dict | list) else value for name, value in values.items()}
    await connection.execute(update(batches).where(batches.c.id == lease.batch_id).values(row))
