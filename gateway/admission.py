"""The admission decision, free of machinery: what the queue answered -> accepted, or a typed refusal.

Retry-After is how long the queue needs, at the rate it drained lately, to have room again. Where the number of
requests is what is full, it is the queue's promise: refused clients are let in in the order they were refused, by
whatever gateway they come (lua/include/promises.lua). Elsewhere it is jittered, so that they do not come back together.
"""

from __future__ import annotations

import hashlib
import random
from array import array
from collections import deque
from dataclasses import dataclass, field, replace

import msgspec

from shared.errors import DeadlineUnreachable, HeadraceError, IdempotencyConflict, Overloaded, QueueFull, Unavailable
from shared.request_queue import Admitted, Bounds
from shared.schemas import Request

_WORDS = {
    "full": ("requests", "the queue of this model"),
    "tokens_full": ("prompt tokens", "the queue of this model"),
    "bytes_full": ("bytes", "the queue of this model"),
    "tenant_full": ("requests", "your share of the queue"),
    "class_full": ("requests", "the share of the queue that batches have"),
}
# What says nothing of who asks: another model may have room.
_OF_THE_MODEL = ("full", "tokens_full", "bytes_full")
MIN_RETRY_S, MAX_RETRY_S = 1.0, 30.0
# Of a drain rate: the time it is taken over at least and at most, and how many requests are enough to end that.
_SHORTEST_S, _LONGEST_S, _ENOUGH = 5.0, 120.0, 32


@dataclass(slots=True)
class DrainRate:
    """Requests taken a second while some waited for workers; fed with a counter that only grows. 0: not known.

    How many are taken while nothing waits says what was asked, not what can be done, so it does not count: `_seen` is
    (seconds in which some waited, taken in them). Requests that began together end together, and long ones far apart,
    so the rate is taken over as long a time as has a good number of them.
    """

    per_s: float = 0.0
    _last: tuple[float, float] | None = None
    _seen: deque[tuple[float, float]] = field(default_factory=lambda: deque([(0.0, 0.0)]))

    def observe(self, total: float, at_s: float, *, is_draining: bool) -> None:
        if not is_draining:
            self._last = None
            return
        if self._last is not None and at_s > self._last[1] and total >= self._last[0]:
            seconds, taken = self._seen[-1]
            self._seen.append((seconds + at_s - self._last[1], taken + total - self._last[0]))
            while len(self._seen) > 2 and self._reaches_far(self._seen[1]):
                self._seen.popleft()
            seconds, taken = self._over(self._seen[0])
            self.per_s = taken / seconds
        self._last = (total, at_s)

    def _reaches_far(self, since: tuple[float, float]) -> bool:
        seconds, taken = self._over(since)
        return seconds >= _LONGEST_S or (seconds >= _SHORTEST_S and taken >= _ENOUGH)

    def _over(self, since: tuple[float, float]) -> tuple[float, float]:
        return self._seen[-1][0] - since[0], self._seen[-1][1] - since[1]


def mark_of(request: Request, key_hash: str) -> str:
    """By what a refused client is known when it comes back: its idempotency key, else what it asks for (but for the
    seed, which the gateway may have drawn)."""
    mark = hashlib.blake2b(f"{request.tenant}\n{key_hash}\n".encode(), digest_size=12)
    if not key_hash:
        mark.update(msgspec.json.encode(msgspec.structs.replace(request.params, seed=0)))
        mark.update(array("I", request.prompt_ids).tobytes())
    return mark.hexdigest()


def within_share(bounds: Bounds, share: float, tokens: int, num_bytes: int) -> Bounds:
    """The bounds for a class that may have a share of the room. One request alone fits where it would without."""
    return replace(
        bounds,
        class_max_waiting=max(1, int(share * bounds.max_waiting)),
        max_waiting_tokens=_part(bounds.max_waiting_tokens, share, tokens),
        max_waiting_bytes=_part(bounds.max_waiting_bytes, share, num_bytes),
    )


def _part(bound: int, share: float, alone: int) -> int:
    return min(bound, max(int(share * bound), alone))


def retry_after_s(excess: float, per_s: float, jitter: float | None = None) -> float:
    """Seconds until `excess` requests have drained, within 1 to 30, with up to a quarter of jitter on top."""
    seconds = MAX_RETRY_S if per_s <= 0 else excess / per_s
    spread = random.uniform(1.0, 1.25) if jitter is None else jitter
    return round(min(MAX_RETRY_S, max(MIN_RETRY_S, seconds) * spread), 1)


def eta_ms(ahead: int, per_s: float) -> int | None:
    """Milliseconds until so many have gone; None while no rate is known."""
    return round(ahead / per_s * 1000) if per_s > 0 else None


def max_ahead(deadlines_ms: tuple[int, ...], per_s: float) -> int:
    """How many may be before a request that meets its deadlines (0: none) at this rate; -1: any number."""
    nearest_ms = min((deadline for deadline in deadlines_ms if deadline), default=0)
    return int(nearest_ms / 1000 * per_s) if nearest_ms and per_s > 0 else -1


def refusal(admitted: Admitted, per_s: float) -> HeadraceError | None:
    """None when the request is in the queue; otherwise the error to raise."""
    if admitted.decision in ("accepted", "duplicate"):
        return None
    if admitted.decision in _WORDS:
        return _overloaded(admitted, per_s)
    if admitted.decision == "too_late":
        ahead, limit = (int(part) for part in admitted.detail)
        return DeadlineUnreachable(
            f"the deadline cannot be met: {ahead} requests are before this one, about {ahead / per_s:.1f} s of work",
            retry_after_s=retry_after_s(ahead - limit, per_s),
        )
    if admitted.decision == "unclaimed":
        return Unavailable("the request was too long on its way into the queue")
    return IdempotencyConflict("the idempotency key belongs to a request with another body", param="idempotency-key")


def _overloaded(admitted: Admitted, per_s: float) -> Overloaded:
    unit, whose = _WORDS[admitted.decision]
    figure, limit, *promise = admitted.detail
    kept, wait_ms = (int(part) for part in promise) if promise else (0, -1)
    places = f" and {kept} places kept for clients refused before" if kept else ""
    kind = QueueFull if admitted.decision in _OF_THE_MODEL else Overloaded
    return kind(
        f"{whose} is full: {figure} {unit} with this request{places}, the limit is {limit}",
        retry_after_s=retry_after_s(1.0, per_s) if wait_ms < 0 else wait_ms / 1000,
    )
