"""What a gateway does for the fleet beside its requests: says that it lives, reaps, looks at the server's settings.

A gateway that stops in order leaves the list of gateways, so that nobody waits for its grace.
"""

from __future__ import annotations

import asyncio
import logging

from redis.exceptions import RedisError

from shared.config import GatewaySettings
from shared.observability import GatewayMetrics
from shared.reaper import Reaper
from shared.redis_client import Scripts, end_tasks, inspect_server
from shared.registry import Registry

log = logging.getLogger(__name__)


class Upkeep:
    """start, stop."""

    def __init__(self, settings: GatewaySettings, scripts: Scripts, gateway: str, metrics: GatewayMetrics) -> None:
        self._settings = settings
        self._scripts = scripts
        self._registry = Registry(scripts)
        self._gateway = gateway
        self._reaper = Reaper(scripts, settings, lambda kind, number: metrics.reaped.labels(kind).inc(number))

    async def start(self) -> None:
        """Returns at once: a server that is away is waited for in the background, and readiness says so."""
        self._tasks = [
            asyncio.create_task(self._inspect()),
            asyncio.create_task(self._beat()),
            asyncio.create_task(self._reaper.run()),
        ]

    async def stop(self) -> None:
        await end_tasks(*self._tasks)
        try:
            await self._registry.forget_gateways([self._gateway])
        except (RedisError, OSError) as error:
            log.warning("leave_failed", extra={"error": str(error)})

    async def _inspect(self) -> None:
        while True:
            try:
                for finding in await inspect_server(self._scripts.client):
                    log.error("redis_setting", extra={"finding": finding.what, "is_fatal": finding.is_fatal})
                return
            except (RedisError, OSError):
                await asyncio.sleep(1.0)

    async def _beat(self) -> None:
        s = self._settings
        while True:
            try:
                await self._registry.beat_gateway(self._gateway, s.lease_ms, s.orphan_grace_ms)
            except (RedisError, OSError) as error:
                log.warning("beat_failed", extra={"error": str(error)})
            await asyncio.sleep(s.heartbeat_ms / 1000)
