"""The routes in Redis: the hash `hr:routes`, and the stream of who changed what.

RedisError passes through.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from shared import keys
from shared.redis_client import Scripts
from shared.routing.entries import Route, as_json
from shared.routing.table import RouteTable, changed, table_of

# Changes that are kept.
LOG_LENGTH = 1000


@dataclass(frozen=True, slots=True)
class RouteStore:
    scripts: Scripts

    async def raw(self) -> dict[bytes, bytes]:
        """As stored: name -> JSON."""
        stored: dict[bytes, bytes] = await self.scripts.client.hgetall(keys.ROUTES)
        return stored

    async def table(self) -> tuple[RouteTable, list[str]]:
        """And what was left out of it, in words."""
        return table_of(await self.raw())

    async def set(self, name: str, route: Route, *, by: str) -> Route:
        """As stored. Raises InvalidRequest for a cycle, or too many."""
        table, _ = await self.table()
        changed(table, name, route)
        seconds, micros = await self.scripts.client.time()
        route = msgspec.structs.replace(route, by=by[:256], at_ms=seconds * 1000 + micros // 1000)
        await self._log("set", name, as_json(route), by)
        await self.scripts.client.hset(keys.ROUTES, name, as_json(route))
        return route

    async def drop(self, name: str, *, by: str) -> bool:
        """False: there was none."""
        if name.encode() not in await self.raw():
            return False
        await self._log("dropped", name, "", by)
        return bool(await self.scripts.client.hdel(keys.ROUTES, name))

    async def _log(self, event: str, name: str, route: str, by: str) -> None:
        """Before the change: what was begun is written down, also when its end is lost."""
        fields = {"event": event, "route": name, "entry": route, "by": by}
        await self.scripts.client.xadd(keys.ROUTES_LOG, fields, maxlen=LOG_LENGTH, approximate=True)
