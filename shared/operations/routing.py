"""Routes as an operator sees and changes them: `headrace route` and `/operator/v1/routes`.

A report says where each route ends, and which of these models no worker has ever registered. Raises InvalidRequest
naming field and limit, RouteNotFound; RedisError passes through.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared import keys
from shared.errors import RouteNotFound
from shared.operations import redis_cli
from shared.operations.desk import Desk
from shared.operations.reports import Report
from shared.registry import Registry
from shared.routing.entries import Route, as_json, route_of
from shared.routing.store import LOG_LENGTH, RouteStore
from shared.routing.table import RouteTable, changed


@dataclass(frozen=True, slots=True)
class RouteRow:
    """`ends`: the models it leads to, with their shares of 1. `unregistered`: those, and fallbacks, that no worker has
    registered yet."""

    name: str
    route: Route
    ends: dict[str, float]
    unregistered: list[str]


@dataclass(frozen=True, slots=True)
class Routes:
    """`faults`: entries that gateways leave out, in words."""

    routes: list[RouteRow]
    faults: list[str]


@dataclass(frozen=True, slots=True)
class Dropped:
    name: str


async def routes(desk: Desk) -> Report[Routes]:
    table, faults = await RouteStore(desk.scripts).table()
    known = await _registered(desk)
    rows = [_row(table, name, known) for name in table.routes]
    return Report(Routes(rows, faults), [redis_cli.line("HGETALL", keys.ROUTES), redis_cli.routes_log()])


async def route(desk: Desk, name: str) -> Report[RouteRow]:
    table, faults = await RouteStore(desk.scripts).table()
    if name not in table:
        fault = next((f"; {fault}" for fault in faults if fault.startswith(f"route '{name}'")), "")
        raise RouteNotFound(f"no route {name[:200]}{fault}")
    return Report(_row(table, name, await _registered(desk)), [redis_cli.line("HGET", keys.ROUTES, name)])


async def set_route(desk: Desk, name: str, fields: bytes, by: str) -> Report[RouteRow]:
    """The whole entry, in the place of what was there. Gateways follow within their `model_poll_s`."""
    store = RouteStore(desk.scripts)
    stored = await store.set(name, route_of(name, fields), by=by)
    table, _ = await store.table()
    row = _row(changed(table, name, stored), name, await _registered(desk))
    return Report(row, [redis_cli.line("HSET", keys.ROUTES, name, as_json(stored)), _logged("set", name, stored, by)])


async def drop_route(desk: Desk, name: str, by: str) -> Report[Dropped]:
    if not await RouteStore(desk.scripts).drop(name, by=by):
        raise RouteNotFound(f"no route {name[:200]}")
    return Report(Dropped(name), [redis_cli.line("HDEL", keys.ROUTES, name), _logged("dropped", name, None, by)])


def _logged(event: str, name: str, stored: Route | None, by: str) -> str:
    entry = as_json(stored) if stored is not None else ""
    fields = ("event", event, "route", name, "entry", entry, "by", by)
    return redis_cli.line("XADD", keys.ROUTES_LOG, "MAXLEN", "~", LOG_LENGTH, "*", *fields)


async def _registered(desk: Desk) -> set[str]:
    """Names and revisions."""
    cards = await Registry(desk.scripts).models()
    return {name for card in cards for name in (card.name, card.revision)}


def _row(table: RouteTable, name: str, known: set[str]) -> RouteRow:
    shares: dict[str, float] = {}
    for end in table.ends(name):
        shares[end.model] = round(shares.get(end.model, 0.0) + end.share, 6)
    asked = [*shares, *(end.model for fallback in table.routes[name].fallbacks for end in table.ends(fallback))]
    return RouteRow(name, table.routes[name], shares, [model for model in dict.fromkeys(asked) if model not in known])
