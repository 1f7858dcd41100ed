"""How old the oldest of a model is, by class and by whether it waits or runs; and the longest silence of a worker.

Times are Redis' own, differences are clamped at 0. What went back waits in a queue of its own for all classes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shared import keys
from shared.operations.overview import read_overview
from shared.redis_client import Scripts
from shared.registry import Registry
from shared.request_queue import Bounds
from shared.schemas import ServiceClass

ALL_CLASSES = "_all"
RETURNED = (ALL_CLASSES, "returned")
_NO_BOUNDS = Bounds(0, 0, 0)


@dataclass(slots=True)
class Ages:
    """`oldest_s` by class and state (`waiting`, `running`; RETURNED: what waits to be taken once more): 0 for none."""

    oldest_s: dict[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])
    num_dead_letters: int = 0
    heartbeat_s: float = 0.0

    def older(self, other: Ages) -> Ages:
        """Of two revisions of a name."""
        oldest = {key: max(self.oldest_s.get(key, 0.0), other.oldest_s.get(key, 0.0)) for key in other.oldest_s}
        num_dead = self.num_dead_letters + other.num_dead_letters
        return Ages(self.oldest_s | oldest, num_dead, max(self.heartbeat_s, other.heartbeat_s))


async def read_ages(scripts: Scripts, model: str) -> Ages:
    """Of one revision. Raises RedisError."""
    overview = await read_overview(scripts, model, _NO_BOUNDS)
    oldest = {(each.value, state): 0.0 for each in ServiceClass for state in ("waiting", "running")}
    for flow in overview.flows:
        key = (flow.service_class, "waiting")
        oldest[key] = max(oldest.get(key, 0.0), flow.oldest_age_ms / 1000)
    oldest[RETURNED] = overview.retry_oldest_age_ms / 1000
    workers = await Registry(scripts).workers(model)
    for row in workers:
        if row.num_owned:
            await _longest_run(scripts, model, row.worker_id, oldest, overview.at_ms)
    heartbeat_ms = max((row.beat_age_ms for row in workers), default=0)
    return Ages(oldest, overview.num_dead_letters, max(0, heartbeat_ms) / 1000)


async def _longest_run(
    scripts: Scripts, model: str, worker: str, oldest: dict[tuple[str, str], float], now_ms: int
) -> None:
    """Of what one worker holds: its first was taken longest ago."""
    client = scripts.client
    owned: list[Any] = await client.zrange(keys.owned(model, worker), 0, 0, withscores=True)
    for request_id, taken_at in owned:
        service_class = await client.hget(keys.request(model, request_id.decode()), "class")
        if service_class is not None:
            key = (service_class.decode(), "running")
            oldest[key] = max(oldest.get(key, 0.0), (now_ms - float(taken_at)) / 1000)
