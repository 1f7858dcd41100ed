"""Waiting until what was written is on disk or on a replica: for requests whose gateway may not bear witness.

Asked of the one server that keeps the model's slot. The waiting commands count the writes of their own connection, so
each goes with a write, in one pipeline. That write comes after the ones meant, and a log keeps its order: when it is
safe, they are. Where a replica is connected it is waited for as well: it may be the one that takes over.
"""

from __future__ import annotations

import time
from typing import Any, Literal

from redis.exceptions import AskError, MovedError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from shared import keys
from shared.errors import Unavailable
from shared.redis_client import Client, keeper

# On disk (no replica, or none that answers); on a replica, and on disk where there is a log; neither can be had.
Durability = Literal["aof", "replica", "none"]
# A slot that has moved is found at the second try.
_TRIES = 3
# What is on disk waits so long for a replica: one that hangs must not keep everybody waiting.
_REPLICA_MS = 1000


async def make_durable(client: Client, model: str, timeout_ms: int) -> Durability:
    """Returns when everything written to this model's slot before the call is safe, or cannot be made so.

    Raises Unavailable when it could be and is not within `timeout_ms` (or one socket timeout), and RedisError.
    """
    give_up = time.monotonic() + timeout_ms / 1000
    for _ in range(_TRIES):
        try:
            async with keeper(client, keys.counts(model)) as server:
                return await _ask(server, model, give_up)
        except MovedError:
            continue
        except RedisTimeoutError as error:
            raise _not_in_time() from error
        except AskError as error:
            raise Unavailable("the model's slot is being moved") from error
    raise Unavailable("the queue has no server for this model now")


async def _ask(server: Any, model: str, give_up: float) -> Durability:
    on_disk = await _wait(server, model, "WAITAOF", 1, 0, _left_ms(give_up))
    # An older server, or one without an append-only file, answers with an error.
    has_log = not isinstance(on_disk, ResponseError)
    if has_log and int(on_disk[0]) < 1:
        raise _not_in_time()
    if not (await server.info("replication")).get("connected_slaves"):
        return "aof" if has_log else "none"
    left_ms = min(_left_ms(give_up), _REPLICA_MS) if has_log else _left_ms(give_up)
    if int(await _wait(server, model, "WAIT", 1, left_ms)) < 1:
        if has_log:
            return "aof"
        raise _not_in_time()
    return "replica"


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


def _left_ms(give_up: float) -> int:
    """At least one: zero would be for ever."""
    return max(1, round((give_up - time.monotonic()) * 1000))


def _not_in_time() -> Unavailable:
    return Unavailable("the request could not be made durable in time", retry_after_s=2.0)
