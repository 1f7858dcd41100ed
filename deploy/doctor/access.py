"""The doctor's look at API keys: who may use this installation. Without any, everybody may, and that is a warning."""

from __future__ import annotations

import asyncio

from redis.exceptions import RedisError

from deploy.doctor.findings import Finding, fail, ok, warn
from shared import keys
from shared.access.entries import KeyEntry
from shared.access.keyring import read_key_file, ring_of
from shared.config import GatewaySettings, load
from shared.errors import ConfigurationError
from shared.redis_client import connect

_MAKE_ONE = "headrace keys new --tenant NAME"


def examine(redis_url: str) -> list[Finding]:
    """`redis_url`: where `hr:keys` is; '' for the embedded server, which may not run now."""
    try:
        settings = load(GatewaySettings, redis_url=redis_url or None)
        in_file = read_key_file(settings.keys_file) if settings.keys_file else ()
        in_redis = asyncio.run(_read(settings)) if redis_url else {}
    except ConfigurationError as error:
        return [fail("API keys", error.message, "mend it: gateways refuse to start")]
    except (RedisError, OSError) as error:
        return [warn("API keys", f"hr:keys could not be read: {error}", "see the finding on redis")]
    return judge(settings, in_file, in_redis)


def judge(settings: GatewaySettings, in_file: tuple[KeyEntry, ...], in_redis: dict[bytes, bytes]) -> list[Finding]:
    ring, faults = ring_of(in_file, in_redis)
    findings = [fail("API keys", fault, "this key opens nothing") for fault in faults]
    if len(ring):
        return [*findings, ok("API keys", f"{len(ring)} of {ring.num_tenants} tenants")]
    if settings.require_keys or settings.keys_file or in_redis:
        return [*findings, warn("API keys", "none that can be used: nobody can use the service", _MAKE_ONE)]
    where = f"{settings.host}:{settings.port}"
    return [warn("API keys", f"none: whoever reaches {where} is served, without limits", _MAKE_ONE)]


async def _read(settings: GatewaySettings) -> dict[bytes, bytes]:
    client = connect(settings)
    try:
        return await client.hgetall(keys.API_KEYS)
    finally:
        await client.aclose()
