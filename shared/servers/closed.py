"""Connections that were closed under a command, said in redis-py's own words.

uvloop raises RuntimeError for a write on a transport that broke since it was last looked at; redis-py lets it through,
and what is no connection error ends whoever repeats after connection errors only.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError


@functools.cache
def closed_is_away(kind: type[AbstractConnection]) -> type[AbstractConnection]:
    """`kind`, raising ConnectionError for a transport that is closed."""

    class TellingConnection(kind):
        async def send_packed_command(self, command: bytes | str | Iterable[bytes], check_health: bool = True) -> None:
            try:
                await super().send_packed_command(command, check_health)
            except RuntimeError as error:
                raise RedisConnectionError(f"the connection was closed: {error}") from error

    return TellingConnection


def telling_of_closed(client: Redis) -> Redis:
    """The client, whose pool makes such connections from now on."""
    pool: Any = client.connection_pool
    pool.connection_class = closed_is_away(pool.connection_class)
    return client
