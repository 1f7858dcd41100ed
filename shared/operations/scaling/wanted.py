"""How many workers a model wants, from what waits, what runs and what a worker has shown it can do. Pure.

    by wait   tokens waiting / (tokens a second of one worker x target wait): whoever comes now begins in time
    by use    workers kept busy by what runs / utilisation: the fleet is no fuller than that
    needed    ceil(the larger); 1 at least while anything waits or runs; 0 after `idle_s` without work

The larger, not the sum: what waits is divided among all workers, those that are busy now included. Neither depends on
how many workers there are, so workers that are still starting are not asked for twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

# Tokens a second of one worker: less has not been shown, it is what a clock makes of nothing.
_LEAST_SPEED = 1e-3


@dataclass(frozen=True, slots=True)
class Policy:
    """What is wanted of a fleet. `target_wait_s`: how long whoever comes last may wait for a worker. `utilisation`: how
    full the workers may be, 0 to 1. `min_workers`, `max_workers`: bounds, of all revisions of a name together.
    `idle_s`: without work for so long, none is wanted (but for `min_workers`). `tolerance`: a fleet too large by this
    part of it, or less, is left as it is."""

    target_wait_s: float = 10.0
    utilisation: float = 0.8
    min_workers: int = 1
    max_workers: int = 64
    idle_s: float = 300.0
    tolerance: float = 0.1


@dataclass(frozen=True, slots=True)
class Work:
    """What a revision has to do, and with what.

    `expected_tokens`: of what waits, prompts and the answers to be expected. `busy_slots`: sequences that run; `slots`:
    those the live workers have room for. `kv_use`: how full their KV memory is, 0 to 1. `worker_tokens_per_s`: of one
    worker with all slots busy, prompts and answers; 0 where nothing has shown it. `idle_s`: since it had work.
    """

    waiting: int
    expected_tokens: float
    busy_slots: int
    live_workers: int
    slots: int
    kv_use: float = 0.0
    worker_tokens_per_s: float = 0.0
    idle_s: float = 0.0
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class Need:
    """`because`: what decided: `wait`, `use`, `work` (there is some), `recent` (there was some), `idle`."""

    workers: int
    because: str


def needed(work: Work, policy: Policy) -> Need:
    """Of one revision, before the bounds. Grows with what waits and with what runs, never falls with them."""
    if work.waiting <= 0 and work.busy_slots <= 0:
        keeps = work.live_workers > 0 and work.idle_s < policy.idle_s
        return Need(1, "recent") if keeps else Need(0, "idle")
    by_use, by_wait = _by_use(work, policy), _by_wait(work, policy)
    workers = math.ceil(max(by_use, by_wait) - 1e-9)
    if workers <= 1:
        return Need(1, "work")
    return Need(workers, "wait" if by_wait > by_use else "use")


def wait_s(work: Work) -> float | None:
    """How long whoever comes now waits for a worker, with those that live; None where it cannot be told."""
    if work.waiting <= 0:
        return 0.0
    if work.is_paused or work.live_workers <= 0 or work.worker_tokens_per_s < _LEAST_SPEED:
        return None
    return work.expected_tokens / (work.worker_tokens_per_s * work.live_workers)


def bounded(needs: Iterable[int], policy: Policy, current: int | None = None) -> int:
    """Workers of a name: its revisions' needs within the bounds. `current`: how many its caller has started."""
    wanted = min(max(sum(needs), policy.min_workers), max(policy.max_workers, policy.min_workers))
    if current is None or not 0 < wanted < current <= policy.max_workers:
        return wanted
    return current if current - wanted <= policy.tolerance * current else wanted


def _by_use(work: Work, policy: Policy) -> float:
    """No slots: nobody has said how large a worker is. Then one comes first, and says it."""
    if work.live_workers <= 0 or work.slots <= 0:
        return 0.0
    share = max(work.busy_slots / work.slots, work.kv_use)
    return work.live_workers * share / policy.utilisation


def _by_wait(work: Work, policy: Policy) -> float:
    """Nothing of a paused model is taken, however many workers there are."""
    if work.is_paused or work.worker_tokens_per_s < _LEAST_SPEED:
        return 0.0
    return work.expected_tokens / (work.worker_tokens_per_s * policy.target_wait_s)
