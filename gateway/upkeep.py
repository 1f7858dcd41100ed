"""What a gateway does for the fleet beside its requests: says that it lives, reaps, looks at the server's settings.

A gateway that stops in order leaves the list of gateways, so that nobody waits for its grace.
"""

from __future__ import annotations

import asyncio
import logging

from redis.exceptions import RedisError

from gateway.catalogue import Catalogue
from shared.config import GatewaySettings
from shared.observability import GatewayMetrics
from shared.reaper import Reaper
from shared.redis_client import Finding, Scripts, end_tasks, inspect_server
from shared.registry import Registry

log = logging.getLogger(__name__)
_INSPECT_S = 30.0
_RETRY_S = 1.0


class Upkeep:
    """start, stop."""

    def __init__(
        self, settings: GatewaySettings, scripts: Scripts, gateway: str, catalogue: Catalogue, metrics: GatewayMetrics
    ) -> None:
        self._settings = settings
        self._scripts = scripts
        self._registry = Registry(scripts)
        self._gateway = gateway
        self._catalogue = catalogue
        self._fault = ""
        self._known_findings: list[Finding] = []
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

    async def is_ready(self, min_workers: int) -> tuple[bool, str]:
        """Whether requests can be accepted here, and why not. A server that may drop them is no place to put them."""
        if self._fault:
            return False, self._fault
        return await self._catalogue.is_ready(min_workers)

    async def _inspect(self) -> None:
        """Again and again: the server behind a URL may be another one, or be set otherwise."""
        while True:
            try:
                findings = await inspect_server(self._scripts.client)
                self._fault = next((f"Redis: {finding.what}" for finding in findings if finding.is_fatal), "")
                if findings != self._known_findings:
                    for finding in findings:
                        log.error("redis_setting", extra={"finding": finding.what, "is_fatal": finding.is_fatal})
                self._known_findings = findings
                await asyncio.sleep(_INSPECT_S)
            except (RedisError, OSError):
                await asyncio.sleep(_RETRY_S)

    async def _beat(self) -> None:
        s = self._settings
        while True:
            try:
                await self._registry.beat_gateway(self._gateway, s.lease_ms, s.orphan_grace_ms)
            except (RedisError, OSError) as error:
                log.warning("beat_failed", extra={"error": str(error)})
            await asyncio.sleep(s.heartbeat_ms / 1000)
