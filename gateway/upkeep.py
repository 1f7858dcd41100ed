"""What a gateway does for the fleet beside its requests: says that it lives, reaps, looks at the server's
settings, and tells Prometheus how many workers are wanted.

A gateway that stops in order leaves the list of gateways, so that nobody waits for its grace.
"""

from __future__ import annotations

import asyncio
import logging

from redis.exceptions import RedisError

from gateway.models.catalogue import Catalogue
from shared.config import GatewaySettings
from shared.observability import GatewayMetrics
from shared.operations.ages import Ages, read_ages
from shared.operations.scaling.figures import ModelScaling, policy_of
from shared.operations.scaling.reading import read_scaling
from shared.reaper import Reaper
from shared.redis_client import Finding, Scripts, end_tasks, inspect_server
from shared.registry import Registry

log = logging.getLogger(__name__)
_INSPECT_S = 30.0
_MEASURE_S = 5.0
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
        self._metrics = metrics
        self._fault = ""
        self._known_findings: list[Finding] = []
        self._reaper = Reaper(scripts, settings, lambda kind, number: metrics.reaped.labels(kind).inc(number))

    async def start(self) -> None:
        """Returns at once: a server that is away is waited for in the background, and readiness says so."""
        self._tasks = [
            asyncio.create_task(self._inspect()),
            asyncio.create_task(self._beat()),
            asyncio.create_task(self._reaper.run()),
            asyncio.create_task(self._measure()),
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

    async def _measure(self) -> None:
        policy = policy_of(self._settings)
        while True:
            try:
                for row in await read_scaling(self._scripts, policy):
                    self._tell(row)
                    await self._tell_ages(row)
            except (RedisError, OSError) as error:
                log.warning("scaling_not_read", extra={"error": str(error)})
            await asyncio.sleep(_MEASURE_S)

    def _tell(self, row: ModelScaling) -> None:
        m, of = self._metrics, row.revisions
        m.workers_wanted.labels(row.model).set(row.wanted_workers)
        m.worker_slots.labels(row.model, "all").set(sum(each.slots for each in of))
        m.worker_slots.labels(row.model, "busy").set(sum(each.busy_slots for each in of))
        m.queue_oldest.labels(row.model).set(max(each.oldest_age_ms for each in of) / 1000)
        m.queue_expected_tokens.labels(row.model).set(sum(each.expected_tokens for each in of))
        m.queue_drain.labels(row.model).set(sum(each.drain_per_s for each in of))
        m.queue_drain_tokens.labels(row.model).set(sum(each.drain_tokens_per_s for each in of))

    async def _tell_ages(self, row: ModelScaling) -> None:
        ages, fleet = Ages(), self._metrics.fleet
        for each in row.revisions:
            ages = ages.older(await read_ages(self._scripts, each.model))
        fleet.tell_ages(row.model, ages.oldest_s)
        fleet.dead_letters.labels(row.model).set(ages.num_dead_letters)
        fleet.worker_heartbeat_age.labels(row.model).set(ages.heartbeat_s)

    async def _beat(self) -> None:
        s = self._settings
        while True:
            try:
                await self._registry.beat_gateway(self._gateway, s.lease_ms, s.orphan_grace_ms)
            except (RedisError, OSError) as error:
                log.warning("beat_failed", extra={"error": str(error)})
            await asyncio.sleep(s.heartbeat_ms / 1000)
