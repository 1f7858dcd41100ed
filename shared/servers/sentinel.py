"""The master of a Sentinel service. Whoever is master is asked of the sentinels at each new connection.

A call that meets a master that died or was demoted fails with one of `AWAY` and is not repeated here; the next call
goes to whom the sentinels name then. While they have not agreed on one there is no connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import redis.asyncio as aioredis
from redis.asyncio.sentinel import Sentinel

from shared.servers.address import Address
from shared.servers.closed import telling_of_closed

# Sentinels answer at once or are asked after the next one: a hung one must not cost a whole timeout.
_ASK_S = 1.0


class SentinelClient(aioredis.Redis):
    """redis-py's client of the master, closed together with its connections to the sentinels."""

    sentinels: Sentinel

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await super().aclose(close_connection_pool)
        await self.sentinels.aclose()


def connect_to_master(address: Address, options: Mapping[str, Any], tls: Mapping[str, Any]) -> SentinelClient:
    """`options` are those of each connection; the sentinels are asked with short timeouts and their own names."""
    asking: dict[str, Any] = {
        **options,
        **tls,
        "socket_timeout": min(_ASK_S, options["socket_timeout"]),
        "socket_connect_timeout": min(_ASK_S, options["socket_connect_timeout"]),
        "username": address.sentinel_username,
        "password": address.sentinel_password,
    }
    sentinels = Sentinel(list(address.hosts), sentinel_kwargs=asking)
    for sentinel in sentinels.sentinels:
        telling_of_closed(sentinel)
    credentials = {"db": address.database, "username": address.username, "password": address.password}
    client = sentinels.master_for(address.service, redis_class=SentinelClient, **credentials, **options, **tls)
    assert isinstance(client, SentinelClient)
    client.sentinels = sentinels
    return client
