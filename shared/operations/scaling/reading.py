"""What scaling is decided by, read from Redis in one script a revision, with no watcher and no memory of our own.

How fast a worker is follows from the requests that ended well lately: the slot-seconds they took for their tokens
(Little's law: a worker with `s` slots does `s` slot-seconds of work a second). Every gateway and the `headrace`
command therefore give the same figures.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

import msgspec

from shared import keys
from shared.operations.scaling.figures import ModelScaling, RevisionScaling
from shared.operations.scaling.wanted import Need, Policy, Work, bounded, needed, wait_s
from shared.redis_client import Scripts
from shared.registry import Registry
from shared.schemas import WorkerInfo

MAX_ENDS = 200
MAX_AGE_MS = 600_000
SPAN_MS = 60_000
MAX_TENANTS = 100


@dataclass(frozen=True, slots=True)
class _Fleet:
    live_workers: int
    slots: int
    sequences: int
    kv_use: float
    newest_ms: int


async def read_scaling(
    scripts: Scripts, policy: Policy, name: str = "", current: int | None = None
) -> list[ModelScaling]:
    """All models, or one name, or the one revision named; none where there is none."""
    found: dict[str, list[RevisionScaling]] = {}
    for card in await Registry(scripts).models():
        if not name or name in (card.name, card.revision):
            found.setdefault(card.name, []).append(await _read_revision(scripts, card.revision, policy))
    return [_of_name(model, rows, policy, current) for model, rows in found.items()]


def _of_name(model: str, rows: list[RevisionScaling], policy: Policy, current: int | None) -> ModelScaling:
    wanted = bounded((row.needed_workers for row in rows), policy, current)
    return ModelScaling(model, wanted, sum(row.live_workers for row in rows), policy, rows)


async def _read_revision(scripts: Scripts, model: str, policy: Policy) -> RevisionScaling:
    arguments = (MAX_ENDS, MAX_AGE_MS, SPAN_MS, MAX_TENANTS)
    now, counts, oldest, paused, last_end, ends, workers = await scripts.run("scaling", keys.counts(model), *arguments)
    waiting, waiting_tokens, running = counts
    num_ended, ended_tokens, span_ms, num_rated, slot_ms, prompt_tokens, answer_tokens = ends
    fleet = _fleet(workers)
    idle_ms = now - max(last_end, fleet.newest_ms) if waiting + running == 0 else 0
    per_slot = (prompt_tokens + answer_tokens) * 1000 / slot_ms if slot_ms else 0.0
    work = Work(
        waiting=waiting,
        expected_tokens=waiting_tokens + (waiting * answer_tokens / num_rated if num_rated else 0.0),
        busy_slots=max(running, fleet.sequences if running else 0),
        live_workers=fleet.live_workers,
        slots=fleet.slots,
        kv_use=fleet.kv_use if running else 0.0,
        worker_tokens_per_s=per_slot * fleet.slots / fleet.live_workers if fleet.live_workers else 0.0,
        idle_s=idle_ms / 1000,
        is_paused=bool(paused),
    )
    drain = (num_ended * 1000 / span_ms, ended_tokens * 1000 / span_ms)
    told = _told(model, work, needed(work, policy), drain)
    age = max(0, now - oldest) if oldest else 0
    return replace(told, at_ms=now, waiting_tokens=waiting_tokens, oldest_age_ms=age, running=running, idle_ms=idle_ms)


def _told(model: str, work: Work, need: Need, drain: tuple[float, float]) -> RevisionScaling:
    seconds = wait_s(work)
    return RevisionScaling(
        model=model, at_ms=0, is_paused=work.is_paused, waiting=work.waiting, waiting_tokens=0,
        expected_tokens=round(work.expected_tokens), oldest_age_ms=0,
        wait_ms=None if seconds is None else round(seconds * 1000), running=0, live_workers=work.live_workers,
        busy_slots=work.busy_slots, slots=work.slots,
        utilisation=round(max(work.busy_slots / work.slots if work.slots else 0.0, work.kv_use), 3),
        drain_per_s=round(drain[0], 3), drain_tokens_per_s=round(drain[1], 1),
        worker_tokens_per_s=round(work.worker_tokens_per_s, 1), idle_ms=0, needed_workers=need.workers,
        because=need.because,
    )  # fmt: skip


def _fleet(workers: list[tuple[bytes, bytes, int]]) -> _Fleet:
    """What live workers said of themselves; one whose words this version cannot read has no room."""
    slots, sequences, used, total = 0, 0.0, 0.0, 0.0
    for info, load, _ in workers:
        with contextlib.suppress(msgspec.DecodeError):
            slots += msgspec.json.decode(info, type=WorkerInfo).max_num_seqs
        with contextlib.suppress(msgspec.DecodeError):
            told = msgspec.json.decode(load or b"{}", type=dict[str, object])
            sequences += _number(told, "num_running") + _number(told, "num_waiting")
            used, total = used + _number(told, "kv_blocks_used"), total + _number(told, "kv_blocks_total")
    newest = max((int(registered) for _, _, registered in workers), default=0)
    return _Fleet(len(workers), slots, int(sequences), min(1.0, used / total) if total else 0.0, newest)


def _number(told: dict[str, object], name: str) -> float:
    value = told.get(name, 0)
    return float(value) if isinstance(value, int | float) else 0.0
