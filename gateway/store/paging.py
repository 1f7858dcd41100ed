"""Lists in pages, as the API has them: by age, from behind the id that a client saw last.

Of rows with equal times the id decides, so a page neither repeats nor leaves out what another one has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from sqlalchemy import ColumnElement, RowMapping, Table, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from shared.errors import InvalidRequest

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page:
    """`after`: the last id of the page before, '' for the first page. Newest first unless `is_ascending`."""

    limit: int
    after: str = ""
    is_ascending: bool = False


@dataclass(frozen=True, slots=True)
class Paged(Generic[T]):
    items: list[T]
    has_more: bool


async def read_page(
    connection: AsyncConnection,
    table: Table,
    wanted: Sequence[ColumnElement[bool]],
    page: Page,
    item_of: Callable[[RowMapping], T],
) -> Paged[T]:
    """Of a table with `id` and `created_at_ms`. Raises InvalidRequest where `after` is none of the `wanted`."""
    position = tuple_(table.c.created_at_ms, table.c.id)
    statement = select(table).where(*wanted)
    if page.after:
        seen = (await connection.execute(statement.where(table.c.id == page.after))).mappings().first()
        if seen is None:
            raise InvalidRequest(f"after: there is no {page.after[:80]!r} in this list", param="after")
        last = tuple_(seen["created_at_ms"], seen["id"])
        statement = statement.where(position > last if page.is_ascending else position < last)
    columns = (table.c.created_at_ms, table.c.id)
    order = columns if page.is_ascending else tuple(column.desc() for column in columns)
    rows = (await connection.execute(statement.order_by(*order).limit(page.limit + 1))).mappings().all()
    return Paged([item_of(row) for row in rows[: page.limit]], len(rows) > page.limit)
