"""The doctor's look at a Redis or Valkey server: does it keep what the protocol promises?

The judgement is pure (`judge`: facts in, findings out); `examine` only asks the server. A managed server may
refuse CONFIG: what cannot be read is a warning, not a pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import redis

from deploy.doctor.findings import Finding, fail, ok, warn
from shared.config import RedisSettings, load
from shared.errors import ConfigurationError
from shared.redis_client import Client, connect, masters

OLDEST = (7, 0)
WAITAOF_SINCE = (7, 2)
PUBSUB_LIMIT_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True)
class Facts:
    """`version` is the Redis version the server claims to be compatible with; `config` lacks what was refused."""

    name: str
    version: tuple[int, ...]
    replicas: int = 0
    config: dict[str, str] = field(default_factory=dict[str, str])
    address: str = ""

    @property
    def appends(self) -> bool:
        return self.config.get("appendonly") == "yes"


def examine(url: str) -> list[Finding]:
    """Ask the server at `url` (every master of a Cluster) and judge. One FAIL when it cannot be reached."""
    try:
        settings = load(RedisSettings, redis_url=url)
    except ConfigurationError as error:
        return [fail("redis", error.message, "the forms of a URL are in docs/deployment-modes.md")]
    try:
        verdicts = {facts.address: judge(facts) for facts in asyncio.run(_ask_all(settings))}
    except (redis.RedisError, OSError) as error:
        return [fail("redis", f"cannot be used: {error}", "start it, or mend HEADRACE_REDIS_URL (--redis)")]
    return _together(verdicts)


def _together(verdicts: Mapping[str, Sequence[Finding]]) -> list[Finding]:
    """What all masters have in common once; the rest with the masters it is true of."""
    at: dict[Finding, list[str]] = {}
    for address, findings in verdicts.items():
        for finding in findings:
            at.setdefault(finding, []).append(address)
    return [
        finding if len(where) == len(verdicts) else replace(finding, detail=f"{finding.detail} (at {', '.join(where)})")
        for finding, where in at.items()
    ]


async def _ask_all(settings: RedisSettings) -> list[Facts]:
    client = connect(settings)
    try:
        async with masters(client) as servers:
            return [await _ask(server, str(number)) for number, server in enumerate(servers, 1)]
    finally:
        await client.aclose()


async def _ask(client: Client, number: str) -> Facts:
    info = await client.info()
    try:
        config: dict[str, str] = {name: str(value) for name, value in (await client.config_get("*")).items()}
    except redis.ResponseError:
        config = {}
    name = f"valkey {info['valkey_version']}" if "valkey_version" in info else f"redis {info['redis_version']}"
    version = tuple(int(part) for part in str(info["redis_version"]).split(".")[:3])
    address = f"port {info['tcp_port']}" if "tcp_port" in info else number
    return Facts(
        name=name, version=version, replicas=int(info.get("connected_slaves", 0)), config=config, address=address
    )


def judge(facts: Facts) -> list[Finding]:
    findings = [_version(facts)]
    if not facts.config:
        findings.append(
            warn(
                "redis settings", "the server refuses CONFIG GET", "check the settings in docs/configuration.md by hand"
            )
        )
    else:
        findings += [check(facts) for check in CHECKS]
    return [*findings, _witness(facts)]


def _version(facts: Facts) -> Finding:
    if facts.version < OLDEST:
        return fail("redis version", facts.name, "7.0 or newer is needed")
    return ok("redis version", facts.name)


def _eviction(facts: Facts) -> Finding:
    policy = facts.config.get("maxmemory-policy", "?")
    if policy != "noeviction":
        return fail(
            "maxmemory-policy", f"{policy} throws away accepted requests", "CONFIG SET maxmemory-policy noeviction"
        )
    return ok("maxmemory-policy", policy)


def _append_only(facts: Facts) -> Finding:
    if facts.appends:
        return ok("appendonly", "yes")
    if facts.replicas:
        return warn("appendonly", "no: only replicas keep accepted requests", "CONFIG SET appendonly yes")
    return fail("appendonly", "no: a restart loses accepted requests", "CONFIG SET appendonly yes")


def _flush(facts: Facts) -> Finding:
    flush = facts.config.get("appendfsync", "?")
    if flush not in ("everysec", "always"):
        return warn("appendfsync", f"{flush}: a power cut loses more than a second", "CONFIG SET appendfsync everysec")
    return ok("appendfsync", flush)


def _truncated(facts: Facts) -> Finding:
    if facts.config.get("aof-load-truncated") != "yes":
        return warn("aof-load-truncated", "no: a crash can keep it from starting", "CONFIG SET aof-load-truncated yes")
    return ok("aof-load-truncated", "yes")


def _memory(facts: Facts) -> Finding:
    limit = int(facts.config.get("maxmemory", "0"))
    if limit == 0:
        return warn("maxmemory", "none: a backlog can take all memory", "CONFIG SET maxmemory to what may be used")
    return ok("maxmemory", f"{limit // 2**20} MiB")


def _subscriber_buffer(facts: Facts) -> Finding:
    words = facts.config.get("client-output-buffer-limit", "").split()
    hard = int(words[words.index("pubsub") + 1]) if "pubsub" in words else 0
    if 0 < hard < PUBSUB_LIMIT_BYTES:
        remedy = 'CONFIG SET client-output-buffer-limit "pubsub 64mb 32mb 30"'
        return warn("pubsub buffer", f"{hard // 2**20} MiB: slow gateways are cut off often", remedy)
    return ok("pubsub buffer", f"{hard // 2**20} MiB" if hard else "no limit")


def _idle(facts: Facts) -> Finding:
    idle = facts.config.get("timeout", "0")
    if idle != "0":
        return warn("timeout", f"{idle} s: idle connections are cut", "CONFIG SET timeout 0")
    return ok("timeout", "0")


def _witness(facts: Facts) -> Finding:
    """A request nobody waits for is accepted only once it is on disk here, or on a replica."""
    if facts.version >= WAITAOF_SINCE and facts.appends:
        return ok("acknowledged writes", "WAITAOF")
    if facts.replicas:
        return ok("acknowledged writes", f"WAIT with {facts.replicas} replica(s)")
    return warn(
        "acknowledged writes",
        "neither WAITAOF (7.2, appendonly) nor a replica: detached requests cannot be made safe",
        "use Redis 7.2+ or Valkey with appendonly yes, or add a replica",
    )


CHECKS: tuple[Callable[[Facts], Finding], ...] = (
    _eviction,
    _append_only,
    _flush,
    _truncated,
    _memory,
    _subscriber_buffer,
    _idle,
)
