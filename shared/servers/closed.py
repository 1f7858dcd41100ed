"""redis-py's connections as we need them: what was closed under a command is said in redis-py's own words, and
connections over TLS share their context.

uvloop raises RuntimeError for a write on a transport that broke since it was last looked at; redis-py lets it through,
and what is no connection error ends whoever repeats after connection errors only.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection, SSLConnection
from redis.exceptions import ConnectionError as RedisConnectionError

from shared.servers.tls import context_of


@functools.cache
def closed_is_away(kind: type[AbstractConnection]) -> type[AbstractConnection]:
    """`kind`, raising ConnectionError for a transport that is closed."""

    class TellingConnection(kind):
        async def send_packed_command(self, command: bytes | str | Iterable[bytes], check_health: bool = True) -> None:
            try:
                await super().send_packed_command(command, check_health)
            except RuntimeError as error:
                raise RedisConnectionError(f"the connection was closed: {error}") from error

        async def connect_check_health(self, *args: Any, **kwargs: Any) -> None:
            if isinstance(self, SSLConnection) and not self.is_connected:
                self.ssl_context.context = context_of(self.ssl_context)
            await super().connect_check_health(*args, **kwargs)

    return TellingConnection


def telling_of_closed(client: Redis) -> Redis:
    """The client, whose pool makes such connections from now on."""
    pool: Any = client.connection_pool
    pool.connection_class = closed_is_away(pool.connection_class)
    return client
