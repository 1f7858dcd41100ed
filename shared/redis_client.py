"""Connections to Redis (one server, Sentinel or Cluster, by the URL), and the scripts.

Every timeout is explicit and nothing retries blindly: redis-py's defaults write twice during a stall. Scripts
are idempotent, so after one of `AWAY` their callers repeat them; after a failover that repeat goes to the new
master. A server's settings are checked where a process starts.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any, Protocol, cast

import redis.asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    ClusterDownError,
    MovedError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from shared import keys
from shared.config import RedisSettings
from shared.servers import address
from shared.servers.closed import telling_of_closed
from shared.servers.cluster import ClusterClient
from shared.servers.sentinel import connect_to_master
from shared.servers.tasks import end_tasks as end_tasks

# The server could not be asked, or not now: loading its file, failing over, moving a slot, memory full. A repeat may
# succeed.
AWAY = (
    RedisConnectionError, RedisTimeoutError, OSError, ClusterDownError, ReadOnlyError, TryAgainError, OutOfMemoryError,
)  # fmt: skip
_REFUSES_WHEN_FULL = frozenset({"admit", "claim"})
_INCLUDE = re.compile(r"^-- include: (.+)$", re.MULTILINE)
# A master without its replicas, or that cannot write its file, refuses all writes until that is mended.
_NOT_NOW = ("NOREPLICAS", "MISCONF")
_BLOCKING_MARGIN_S = 2.0


class Client(Protocol):
    """What we use of redis-py's asyncio client (its own types leave most of it unknown). Replies are bytes."""

    async def evalsha(self, sha: str, numkeys: int, /, *args: bytes | str | float) -> Any: ...
    async def eval(self, script: str, numkeys: int, /, *args: bytes | str | float) -> Any: ...
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
    async def hdel(self, name: str, *keys: str) -> int: ...
    async def xadd(self, name: str, fields: dict[str, str], *, maxlen: int, approximate: bool) -> bytes: ...
    async def zcard(self, name: str | bytes) -> int: ...
    async def zcount(self, name: str, min: int | str, max: int | str) -> int: ...
    async def zadd(self, name: str, mapping: dict[str, int]) -> int: ...
    async def zremrangebyscore(self, name: str, min: int | str, max: int | str) -> int: ...
    async def pexpire(self, name: str, time: int) -> bool: ...
    async def zrem(self, name: str, *values: str) -> int: ...
    async def zrange(self, name: str, start: int, end: int, *, withscores: bool = False) -> list[Any]: ...
    async def xlen(self, name: str | bytes) -> int: ...
    async def xinfo_consumers(self, name: str | bytes, groupname: str) -> list[dict[str, Any]]: ...
    async def xrevrange(self, name: str, max: str, min: str, count: int) -> list[Any]: ...
    async def smembers(self, name: str) -> set[bytes]: ...
    async def blpop(self, keys: list[str], timeout: float) -> Any: ...  # noqa: ASYNC109 - redis-py's own name
    def scan_iter(self, match: str, count: int | None = None) -> AsyncIterator[bytes]: ...
    def pubsub(self) -> Any: ...
    async def aclose(self) -> None: ...


@functools.cache
def script_text(name: str, *, is_sharded: bool = False) -> str:
    """A script as the server gets it: flags, the parts it includes, its own text. `is_sharded`: for a Cluster.

    Only what brings work is refused when memory is full: finishing work is what frees it.
    """
    folder = resources.files("shared") / "lua"
    text = (folder / f"{name}.lua").read_text("utf-8")
    included = _INCLUDE.search(text)
    parts = [(folder / "include" / f"{part}.lua").read_text("utf-8") for part in _names(included)]
    flags = "" if name in _REFUSES_WHEN_FULL else " flags=allow-oom"
    whole = "\n".join([f"#!lua{flags}", *parts, text])
    return whole.replace("'PUBLISH'", "'SPUBLISH'") if is_sharded else whole


def _names(included: re.Match[str] | None) -> list[str]:
    return [part.strip() for part in included.group(1).split(",")] if included else []


def connect(settings: RedisSettings, *, blocking_s: float = 0.0) -> Client:
    """A client without blind retries. `blocking_s`: the longest blocking read it is used for.

    Connects at the first call. After an error of AWAY the next call finds whoever serves its key then.
    """
    timeout_s = settings.redis_timeout_s + (blocking_s + _BLOCKING_MARGIN_S if blocking_s else 0.0)
    where = address.parse(settings.redis_url)
    options: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": settings.redis_timeout_s,
        "socket_keepalive": True,
        "retry": Retry(NoBackoff(), 0),
        "health_check_interval": 0,
        "protocol": 2,
        "max_connections": 256,
    }
    tls = _tls_options(settings, where)
    if where.mode == "cluster":
        return cast(Client, ClusterClient(where, options, tls, home=keys.MODELS))
    if where.mode == "sentinel":
        return cast(Client, telling_of_closed(connect_to_master(where, options, tls)))
    options |= {"username": where.username, "password": where.password, "db": where.database}
    if where.path:
        del options["socket_keepalive"]
        return cast(Client, telling_of_closed(aioredis.Redis(unix_socket_path=where.path, **options)))
    host, port = where.hosts[0]
    return cast(Client, telling_of_closed(aioredis.Redis(host=host, port=port, **options, **tls)))


def _tls_options(settings: RedisSettings, where: address.Address) -> dict[str, Any]:
    """What the URL says, else the settings."""
    if not where.is_tls:
        return {}
    files = {
        "ssl_ca_certs": settings.redis_ca_file,
        "ssl_certfile": settings.redis_cert_file,
        "ssl_keyfile": settings.redis_key_file,
    }
    return {"ssl": True, **{name: path for name, path in files.items() if path}, **where.tls}


@contextlib.asynccontextmanager
async def masters(client: Client) -> AsyncGenerator[list[Client]]:
    """Every server that takes writes: a Cluster's masters, else the one. Raises one of AWAY."""
    if not isinstance(client, ClusterClient):
        yield [client]
        return
    clients = await client.masters()
    try:
        yield cast("list[Client]", clients)
    finally:
        for one in clients:
            await one.aclose()


@contextlib.asynccontextmanager
async def keeper(client: Client, key: str) -> AsyncGenerator[Client]:
    """The server that keeps this key, as far as is known: a Cluster's node, else the one. Raises one of AWAY."""
    if not isinstance(client, ClusterClient):
        yield client
        return
    node = client.client_of(await client.node_of(key))
    try:
        yield cast(Client, node)
    except MovedError:
        client.distrust()
        raise
    finally:
        await node.aclose()


class Scripts:
    """Runs scripts by digest, at the server that keeps the key; one that does not know a script is given its text."""

    def __init__(self, client: Client, on_command: Callable[[str, float, bool], None] | None = None) -> None:
        """`on_command` is told each script that ran: its name, seconds with the round trip, whether Redis was there."""
        self.client = client
        self._on_command = on_command
        self._is_sharded = isinstance(client, ClusterClient)
        self._digests: dict[str, str] = {}

    async def run(self, name: str, key: str, *args: bytes | str | int | float) -> Any:
        """One atomic call. Raises RedisError; after one of AWAY it may be repeated."""
        if self._on_command is None:
            return await self._run(name, key, *args)
        began, is_up = time.perf_counter(), True
        try:
            return await self._run(name, key, *args)
        except AWAY:
            is_up = False
            raise
        finally:
            self._on_command(name, time.perf_counter() - began, is_up)

    async def _run(self, name: str, key: str, *args: bytes | str | int | float) -> Any:
        digest = self._digests.get(name)
        if digest is None:
            digest = hashlib.sha1(self.text(name).encode(), usedforsecurity=False).hexdigest()
            self._digests[name] = digest
        try:
            try:
                return await self.client.evalsha(digest, 1, key, *args)
            except NoScriptError:
                return await self.client.eval(self.text(name), 1, key, *args)
        except ResponseError as error:
            if str(error).startswith(_NOT_NOW):
                raise TryAgainError(str(error)) from error
            raise

    def text(self, name: str) -> str:
        return script_text(name, is_sharded=self._is_sharded)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing a server check found. `is_fatal`: the queue's promises do not hold with it."""

    what: str
    is_fatal: bool


async def inspect_server(client: Client) -> list[Finding]:
    """What is wrong with this server (each master, on a Cluster) for our use; empty when nothing is.

    Raises RedisError when it is away.
    """
    async with masters(client) as servers:
        found = [await _inspect(server) for server in servers]
    return list(dict.fromkeys(finding for findings in found for finding in findings))


async def run_ids(client: Client) -> str:
    """Changes whenever a server was restarted or another one took over."""
    async with masters(client) as servers:
        return " ".join(sorted([str((await server.info("server"))["run_id"]) for server in servers]))


async def _inspect(client: Client) -> list[Finding]:
    info = await client.info()
    found: list[Finding] = []
    version = str(info.get("valkey_version") or info.get("redis_version", "0"))
    least = (7, 2) if "valkey_version" in info else (7, 0)
    if tuple(int(part) for part in version.split(".")[:2]) < least:
        found.append(Finding(f"server version {version} is too old (Redis 7.0, Valkey 7.2)", is_fatal=True))
    try:
        config = await client.config_get("*")
    except ResponseError:
        found.append(Finding("CONFIG GET is not allowed: not all settings could be checked", is_fatal=False))
        appends = {1: "yes", 0: "no"}.get(info.get("aof_enabled", -1))
        config = {"maxmemory-policy": info.get("maxmemory_policy"), "appendonly": appends}
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
