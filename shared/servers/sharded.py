"""A sharded subscription: SSUBSCRIBE at the node of each channel's slot, read as one stream of messages.

It has the calls of redis-py's PubSub that we use, and speaks its words (`subscribe`, `message`). redis-py's own
reads the nodes in turns, each for a whole timeout; here every node has its reader. Whatever goes wrong at one of
them (a lost connection, a slot that moved) is raised by `get_message`: its user subscribes anew, with the slots
read again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import redis.asyncio as aioredis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from shared.servers.tasks import end_tasks

if TYPE_CHECKING:
    from shared.servers.cluster import ClusterClient

_POLL_S = 5.0
_MAX_UNREAD = 1000
_WORDS = {"ssubscribe": "subscribe", "smessage": "message"}


@dataclass(slots=True)
class _Node:
    client: aioredis.Redis
    pubsub: Any
    reader: asyncio.Task[None] | None = None


class ShardedSubscription:
    """subscribe, get_message; aclose ends it."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._nodes: dict[str, _Node] = {}
        self._unread: asyncio.Queue[Mapping[str, Any] | Exception] = asyncio.Queue(_MAX_UNREAD)
        cluster.distrust()

    async def subscribe(self, channel: str) -> None:
        """Asks for the channel; a message of type `subscribe` says that it is heard. Raises RedisError, OSError."""
        owner = await self._cluster.node_of(channel)
        node = self._nodes.get(owner.name)
        if node is None:
            client = self._cluster.client_of(owner)
            node = self._nodes.setdefault(owner.name, _Node(client, client.pubsub()))
        try:
            await node.pubsub.ssubscribe(channel)
        except (RedisError, OSError):
            self._cluster.distrust()
            raise
        if node.reader is None:
            node.reader = asyncio.create_task(self._read(node))

    async def get_message(self, timeout: float) -> Mapping[str, Any] | None:  # noqa: ASYNC109 - redis-py's own name
        """The next message of any node, or None. Raises what a node's reader met."""
        try:
            async with asyncio.timeout(timeout):
                message = await self._unread.get()
        except TimeoutError:
            return None
        if isinstance(message, Exception):
            self._cluster.distrust()
            raise message
        return message

    async def aclose(self) -> None:
        nodes = list(self._nodes.values())
        self._nodes.clear()
        await end_tasks(*(node.reader for node in nodes if node.reader))
        for node in nodes:
            with contextlib.suppress(RedisError, OSError):
                await node.pubsub.aclose()
            with contextlib.suppress(RedisError, OSError):
                await node.client.aclose()

    async def _read(self, node: _Node) -> None:
        try:
            while True:
                message = await node.pubsub.get_message(timeout=_POLL_S)
                if message is None:
                    continue
                if message["type"] == "sunsubscribe":
                    raise RedisConnectionError("the channel's slot was moved to another node")
                await self._unread.put({**message, "type": _WORDS[message["type"]]})
        except (RedisError, OSError) as error:
            await self._unread.put(error)
