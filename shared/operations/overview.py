"""Who waits and who runs in one model's queue, and how old the oldest is. One script, so the figures fit together."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote

from shared import keys
from shared.redis_client import Scripts
from shared.request_queue import Bounds

MAX_TENANTS = 100
MAX_RUNNING = 2000


@dataclass(frozen=True, slots=True)
class Paused:
    """Who stopped a model, why, and since when."""

    by: str
    why: str
    since_ms: int


@dataclass(frozen=True, slots=True)
class Flow:
    """One tenant in one class. `oldest_age_ms` is 0 when nothing of it waits."""

    service_class: str
    tenant: str
    waiting: int
    oldest_age_ms: int
    running: int
    virtual_time: float
    weight: float


@dataclass(frozen=True, slots=True)
class Overview:
    """`flows` shows MAX_TENANTS tenants a class at most; what went back (`retry_waiting`) belongs to no flow.

    `bounds` are those of whoever looks (a gateway's own; the command's environment): they are not kept in Redis.
    """

    model: str
    at_ms: int
    paused: Paused | None
    counts: dict[str, float]
    flows: list[Flow]
    retry_waiting: int
    retry_oldest_age_ms: int
    num_dead_letters: int
    num_live_workers: int
    bounds: Bounds
    oldest_age_ms: int


async def read_paused(scripts: Scripts, model: str) -> Paused | None:
    raw = await scripts.client.hgetall(keys.paused(model))
    if not raw:
        return None
    by, why = (raw.get(name, b"").decode() for name in (b"by", b"why"))
    return Paused(by, why, int(raw.get(b"since", b"0")))


async def read_overview(scripts: Scripts, model: str, bounds: Bounds) -> Overview:
    client = scripts.client
    now, rows, retry = await scripts.run("overview", keys.counts(model), MAX_TENANTS, MAX_RUNNING)
    raw = await client.hgetall(keys.counts(model))
    flows = [_flow(row, now) for row in rows]
    retry_age = _age(retry[0], now)
    return Overview(
        model=model,
        at_ms=now,
        paused=await read_paused(scripts, model),
        counts={name.decode(): float(value) for name, value in raw.items()},
        flows=flows,
        retry_waiting=int(retry[1]),
        retry_oldest_age_ms=retry_age,
        num_dead_letters=await client.xlen(keys.dead(model)),
        num_live_workers=await client.zcount(keys.lease(model), now, "+inf"),
        bounds=bounds,
        oldest_age_ms=max([retry_age, *(flow.oldest_age_ms for flow in flows)]),
    )


def _flow(row: list[bytes | int], now: int) -> Flow:
    service_class, tenant, virtual_time, weight = (
        part.decode() if isinstance(part, bytes) else str(part) for part in (row[0], row[1], row[5], row[6])
    )
    waiting, oldest, running = (int(part) for part in row[2:5])
    age = _age(oldest, now)
    return Flow(service_class, unquote(tenant), waiting, age, running, float(virtual_time), float(weight))


def _age(at_ms: int, now: int) -> int:
    return max(0, now - at_ms) if at_ms else 0
