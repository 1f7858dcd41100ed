"""A Redis Cluster: each call goes to the node that keeps its key's slot, once.

redis-py follows MOVED, ASK and TRYAGAIN, which the server answers instead of doing anything; nothing else is
repeated here. A node that cannot be reached is an error of `AWAY`, and the slots are read again before the next
call. Of redis-py's own errors those that mean `not now` become ClusterDownError or TryAgainError.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import redis.asyncio as aioredis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.connection import Connection
from redis.exceptions import (
    ClusterDownError,
    ClusterError,
    RedisClusterException,
    RedisError,
    SlotNotCoveredError,
    TryAgainError,
)

from shared.servers.address import Address
from shared.servers.closed import closed_is_away, telling_of_closed
from shared.servers.sharded import ShardedSubscription


class ClusterClient(RedisCluster):
    """`home` is a key: keyless questions (PING, TIME) are put to the node that keeps it."""

    def __init__(self, address: Address, options: Mapping[str, Any], tls: Mapping[str, Any], *, home: str) -> None:
        self._seeds = address.hosts
        self._home = home
        self._options: dict[str, Any] = {
            **options, **tls, "username": address.username, "password": address.password,
        }  # fmt: skip
        super().__init__(
            startup_nodes=[ClusterNode(host, port) for host, port in address.hosts],
            require_full_coverage=False,
            reinitialize_steps=0,
            **self._options,
        )
        kind = cast("type[Connection]", closed_is_away(self.connection_kwargs["connection_class"]))
        self.connection_kwargs["connection_class"] = kind
        for node in self.startup_nodes:
            node.connection_class = kind

    async def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        try:
            # Before the slots are known redis-py would ask any node.
            await self.initialize()
            return await super().execute_command(*args, **kwargs)
        except ClusterDownError:
            raise
        except ClusterError as error:
            self.distrust()
            raise TryAgainError(f"the slot is moving: {error}") from error
        except RedisClusterException as error:
            if not (self._initialize or isinstance(error, SlotNotCoveredError)):
                raise
            self._remember_seeds()
            self.distrust()
            raise ClusterDownError(str(error)) from error

    async def aclose(self) -> None:
        # redis-py closes nothing while it means to read the slots again.
        self._initialize = False
        await super().aclose()

    def distrust(self) -> None:
        """What is known of the slots is old: read them before the next call."""
        self._initialize = True

    def get_node(
        self, host: str | None = None, port: int | None = None, node_name: str | None = None
    ) -> ClusterNode | None:
        node = super().get_node(host, port, node_name)
        if node is None and node_name:
            # An ASK that names a node which joined after the slots were read.
            self.distrust()
            raise TryAgainError(f"node {node_name} is not known yet")
        return node

    async def node_of(self, key: str) -> ClusterNode:
        """The master that keeps this key's slot. Raises one of AWAY."""
        try:
            await self.initialize()
            return cast(ClusterNode, self.get_node_from_key(key))
        except RedisClusterException as error:
            self._remember_seeds()
            self.distrust()
            raise ClusterDownError(str(error)) from error

    def client_of(self, node: ClusterNode) -> aioredis.Redis:
        """Connections to one node by itself, for who needs one of its own."""
        return telling_of_closed(aioredis.Redis(host=str(node.host), port=int(node.port), **self._options))

    async def masters(self) -> list[aioredis.Redis]:
        """A client for each master there is now; to be closed by the caller."""
        self.distrust()
        await self.node_of(self._home)
        return [self.client_of(node) for node in self.get_primaries()]

    async def ping(self, **kwargs: Any) -> bool:
        return await super().ping(target_nodes=await self.node_of(self._home), **kwargs)

    async def time(self, **kwargs: Any) -> tuple[int, int]:
        return await super().time(target_nodes=await self.node_of(self._home), **kwargs)

    async def scan_iter(
        self, match: Any = None, count: int | None = None, _type: str | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Keys of the one slot that the pattern's hash tag names: only its node is read."""
        client = self.client_of(await self.node_of(match))
        names = cast("AsyncIterator[Any]", client.scan_iter(match, count, _type, **kwargs))
        try:
            async for name in names:
                yield name
        except (RedisError, OSError):
            self.distrust()
            raise
        finally:
            await client.aclose()

    def pubsub(self, node: Any = None, host: str | None = None, port: int | None = None, **kwargs: Any) -> Any:
        return ShardedSubscription(self)

    def _remember_seeds(self) -> None:
        """The nodes found last are all gone: the URL's own are tried again."""
        for host, port in self._seeds:
            node = ClusterNode(host, port, **self.connection_kwargs)
            self.nodes_manager.startup_nodes.setdefault(node.name, node)
