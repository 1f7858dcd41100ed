"""Waiting until what was written is on disk or on a replica: for requests whose gateway may not bear witness.

The waiting commands count the writes of their own connection, so each goes with a write, in one pipeline. That
write comes after the ones meant, and a log keeps its order: when it is safe, they are.
"""

from __future__ import annotations

from typing import Any, Literal

from redis.exceptions import MovedError, RedisError, ResponseError

from shared import keys
from shared.errors import Unavailable
from shared.redis_client import Client, masters

# On disk; on a replica; neither can be had at this server.
Durability = Literal["aof", "replica", "none"]


async def make_durable(client: Client, model: str, timeout_ms: int) -> Durability:
    """Returns when everything written to this model's slot before the call is safe, or cannot be made so.

    Raises Unavailable when it could be and is not in time, and RedisError.
    """
    async with masters(client) as servers:
        for server in servers:
            try:
                return await _ask(server, model, timeout_ms)
            except MovedError:
                continue
    raise Unavailable("the queue has no server for this model now")


async def _ask(server: Any, model: str, timeout_ms: int) -> Durability:
    on_disk = await _wait(server, model, "WAITAOF", 1, 0, timeout_ms)
    if not isinstance(on_disk, ResponseError):
        return _in_time("aof", int(on_disk[0]))
    # An older server, or one without an append-only file.
    if not (await server.info("replication")).get("connected_slaves"):
        return "none"
    return _in_time("replica", int(await _wait(server, model, "WAIT", 1, timeout_ms)))


async def _wait(server: Any, model: str, *command: str | int) -> Any:
    pipe = server.pipeline(transaction=False)
    pipe.hincrby(keys.counts(model), "durable_asked", 1)
    pipe.execute_command(*command)
    written, reply = await pipe.execute(raise_on_error=False)
    if isinstance(written, RedisError):
        raise written
    if isinstance(reply, RedisError) and not isinstance(reply, ResponseError):
        raise reply
    return reply


def _in_time(how: Durability, num_confirmed: int) -> Durability:
    if num_confirmed < 1:
        raise Unavailable("the request could not be made durable in time", retry_after_s=2.0)
    return how
