"""Connections to Redis, and the scripts.

Every timeout is explicit and nothing retries blindly: redis-py's defaults write twice during a stall. Scripts
are idempotent, so after one of `AWAY` their callers repeat them. A server's settings are checked where a
process starts.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib import resources
from typing import Any, Protocol, cast

import redis.asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ClusterDownError, NoScriptError, ReadOnlyError, RedisError, TryAgainError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from shared.config import RedisSettings

# The server could not be asked, or not now: loading its file, failing over, moving a slot. A repeat may succeed.
AWAY = (RedisConnectionError, RedisTimeoutError, OSError, ClusterDownError, ReadOnlyError, TryAgainError)
_REFUSES_WHEN_FULL = frozenset({"admit"})
_INCLUDE = re.compile(r"^-- include: (.+)$", re.MULTILINE)
_BLOCKING_MARGIN_S = 2.0
_CANCEL_AGAIN_S = 0.2


class Client(Protocol):
    """What we use of redis-py's asyncio client (its own types leave most of it unknown). Replies are bytes."""

    async def evalsha(self, sha: str, numkeys: int, /, *args: bytes | str | float) -> Any: ...
    async def script_load(self, script: str) -> bytes | str: ...
    async def ping(self) -> bool: ...
    async def info(self, section: str | None = None) -> dict[str, Any]: ...
    async def config_get(self, pattern: str) -> dict[Any, Any]: ...
    async def time(self) -> tuple[int, int]: ...
    async def exists(self, *names: str) -> int: ...
    async def get(self, name: str) -> bytes | None: ...
    async def set(self, name: str, value: bytes | str) -> Any: ...
    async def hget(self, name: str, key: str) -> bytes | None: ...
    async def hgetall(self, name: str) -> dict[bytes, bytes]: ...
    async def hset(self, name: str, key: str, value: bytes | str) -> int: ...
    async def zcard(self, name: str | bytes) -> int: ...
    async def zcount(self, name: str, min: int | str, max: int | str) -> int: ...
    async def zrem(self, name: str, *values: str) -> int: ...
    async def zrange(self, name: str, start: int, end: int, *, withscores: bool = False) -> list[Any]: ...
    async def xlen(self, name: str | bytes) -> int: ...
    async def blpop(self, keys: list[str], timeout: float) -> Any: ...  # noqa: ASYNC109 - redis-py's own name
    def scan_iter(self, match: str, count: int | None = None) -> AsyncIterator[bytes]: ...
    def pubsub(self) -> Any: ...
    async def aclose(self) -> None: ...


@functools.cache
def script_text(name: str) -> str:
    """A script as the server gets it: flags, the parts it includes, its own text.

    Only `admit` is refused when memory is full: finishing work is what frees it.
    """
    folder = resources.files("shared") / "lua"
    text = (folder / f"{name}.lua").read_text("utf-8")
    included = _INCLUDE.search(text)
    parts = [(folder / "include" / f"{part}.lua").read_text("utf-8") for part in _names(included)]
    flags = "" if name in _REFUSES_WHEN_FULL else " flags=allow-oom"
    return "\n".join([f"#!lua{flags}", *parts, text])


def _names(included: re.Match[str] | None) -> list[str]:
    return [part.strip() for part in included.group(1).split(",")] if included else []


def connect(settings: RedisSettings, *, blocking_s: float = 0.0) -> Client:
    """A client without blind retries. `blocking_s`: the longest blocking read it is used for."""
    timeout_s = settings.redis_timeout_s + (blocking_s + _BLOCKING_MARGIN_S if blocking_s else 0.0)
    client = aioredis.Redis.from_url(  # pyright: ignore[reportUnknownMemberType]
        settings.redis_url,
        socket_timeout=timeout_s,
        socket_connect_timeout=settings.redis_timeout_s,
        socket_keepalive=True,
        retry=Retry(NoBackoff(), 0),
        retry_on_timeout=False,
        health_check_interval=0,
        protocol=2,
        max_connections=256,
    )
    return cast(Client, client)


class Scripts:
    """Runs scripts by digest, loading one again when the server has lost it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._digests: dict[str, str] = {}

    async def run(self, name: str, key: str, *args: bytes | str | int | float) -> Any:
        """One atomic call. Raises RedisError; after one of AWAY it may be repeated."""
        digest = self._digests.get(name)
        if digest is None:
            digest = await self._load(name)
        try:
            return await self.client.evalsha(digest, 1, key, *args)
        except NoScriptError:
            return await self.client.evalsha(await self._load(name), 1, key, *args)

    async def _load(self, name: str) -> str:
        digest = await self.client.script_load(script_text(name))
        self._digests[name] = digest.decode() if isinstance(digest, bytes) else digest
        return self._digests[name]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing a server check found. `is_fatal`: the queue's promises do not hold with it."""

    what: str
    is_fatal: bool


async def inspect_server(client: Client) -> list[Finding]:
    """What is wrong with this server for our use; empty when nothing is. Raises RedisError when it is away."""
    info = await client.info()
    found: list[Finding] = []
    version = str(info.get("valkey_version") or info.get("redis_version", "0"))
    least = (7, 2) if "valkey_version" in info else (7, 0)
    if tuple(int(part) for part in version.split(".")[:2]) < least:
        found.append(Finding(f"server version {version} is too old (Redis 7.0, Valkey 7.2)", is_fatal=True))
    try:
        config = await client.config_get("*")
    except RedisError:
        return [*found, Finding("CONFIG GET is not allowed: settings could not be checked", is_fatal=False)]
    wanted = (
        ("maxmemory-policy", "noeviction", True, "another policy drops accepted requests"),
        ("appendonly", "yes", False, "accepted requests do not survive a restart"),
        ("appendfsync", "everysec", False, "everysec is what the guarantees are stated for"),
        ("aof-load-truncated", "yes", False, "a cut append-only file keeps the server from starting"),
        ("timeout", "0", False, "idle subscribers would be cut"),
    )
    for name, value, is_fatal, why in wanted:
        actual = config.get(name)
        if actual is not None and actual != value and not (name == "appendfsync" and actual == "always"):
            found.append(Finding(f"{name} is {actual}, wanted {value}: {why}", is_fatal=is_fatal))
    return found


async def end_tasks(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait until they have ended, whatever with.

    A task inside the client may lose a cancellation (one that meets a read's time-out is swallowed), so it is
    repeated until it is obeyed.
    """
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=_CANCEL_AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)
