"""The admission decision, free of machinery: what the queue answered -> accepted, or a typed refusal.

Retry-After is how long the queue needs, at the rate it drained lately, to have room again; jittered so that
refused clients do not come back together.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from shared.errors import HeadraceError, InvalidRequest, Overloaded
from shared.request_queue import Admitted

_WORDS = {
    "full": ("requests", "the queue of this model"),
    "tokens_full": ("prompt tokens", "the queue of this model"),
    "bytes_full": ("bytes", "the queue of this model"),
    "tenant_full": ("requests", "your share of the queue"),
}
MIN_RETRY_S, MAX_RETRY_S = 1.0, 30.0


@dataclass(slots=True)
class DrainRate:
    """Requests ended a second, smoothed; fed with a counter that only grows."""

    per_s: float = 0.0
    _last: tuple[float, float] | None = None

    def observe(self, total: float, at_s: float) -> None:
        if self._last is not None and at_s > self._last[1] and total >= self._last[0]:
            now = (total - self._last[0]) / (at_s - self._last[1])
            self.per_s = now if self.per_s == 0.0 else 0.8 * self.per_s + 0.2 * now
        self._last = (total, at_s)


def retry_after_s(excess: float, per_s: float, jitter: float | None = None) -> float:
    """Seconds until `excess` requests have drained, within 1 to 30, with up to a quarter of jitter on top."""
    seconds = MAX_RETRY_S if per_s <= 0 else excess / per_s
    spread = random.uniform(1.0, 1.25) if jitter is None else jitter
    return round(min(MAX_RETRY_S, max(MIN_RETRY_S, seconds) * spread), 1)


def refusal(admitted: Admitted, per_s: float) -> HeadraceError | None:
    """None when the request is in the queue; otherwise the error to raise."""
    if admitted.decision in ("accepted", "duplicate"):
        return None
    if admitted.decision in _WORDS:
        unit, whose = _WORDS[admitted.decision]
        figure, limit = admitted.detail
        return Overloaded(
            f"{whose} is full: {figure} {unit} with this request, the limit is {limit}",
            retry_after_s=retry_after_s(1.0, per_s),
        )
    return InvalidRequest(f"the idempotency key belongs to another request ({admitted.decision})")
