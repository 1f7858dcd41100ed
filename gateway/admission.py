"""The admission decision, free of machinery: what the queue answered -> accepted, or a typed refusal.

Retry-After is how long the queue needs, at the rate it drained lately, to have room again. Where the number of
requests is what is full, it is a promise: refused clients are let in in the order they were refused. Elsewhere it is
jittered, so that they do not come back together.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from shared.errors import DeadlineUnreachable, HeadraceError, IdempotencyConflict, Overloaded
from shared.request_queue import Admitted

_WORDS = {
    "full": ("requests", "the queue of this model"),
    "tokens_full": ("prompt tokens", "the queue of this model"),
    "bytes_full": ("bytes", "the queue of this model"),
    "tenant_full": ("requests", "your share of the queue"),
}
MIN_RETRY_S, MAX_RETRY_S = 1.0, 30.0
_MAX_PROMISE_S = 60.0  # clients do not wait for longer: the official one ignores what is beyond
_PROMISED_SHARE = 0.95  # of the rate: were it all of it, each dip of the rate would break promises for good
_GRACE_S = 2.0
_AHEAD_S = 1.5


@dataclass(slots=True)
class DrainRate:
    """Requests taken a second while some waited for workers, smoothed; fed with a counter that only grows.

    How many are taken while nothing waits says what was asked, not what can be done, so it does not count.
    """

    per_s: float = 0.0
    _last: tuple[float, float] | None = None

    def observe(self, total: float, at_s: float, *, is_draining: bool) -> None:
        if not is_draining:
            self._last = None
            return
        if self._last is not None and at_s > self._last[1] and total >= self._last[0]:
            now = (total - self._last[0]) / (at_s - self._last[1])
            self.per_s = now if self.per_s == 0.0 else 0.8 * self.per_s + 0.2 * now
        self._last = (total, at_s)


@dataclass(slots=True)
class Promises:
    """When clients refused by a full queue may come back, and the room that is kept for them. One a model.

    Each is told when all refused before it will have been let in. Without room kept for those who are due, whoever
    comes by chance would take it, and no figure could be right. At most half of the queue is kept, so that workers
    always have work; who does not come within `_GRACE_S` loses it. A client is known by what it asks. Of this
    gateway only: one that comes back by another has no promise there.
    """

    _due: dict[int, list[float]] = field(default_factory=dict[int, list[float]])
    _last_s: float = 0.0

    def room(self, asked: int, max_waiting: int, now_s: float) -> int:
        """How many may wait, this one included, for it to be let in."""
        self._forget(now_s)
        if min(self._due.get(asked, [now_s + 1])) <= now_s:
            return max_waiting
        kept = sum(due <= now_s + _AHEAD_S for dues in self._due.values() for due in dues)
        return max(1, max_waiting - min(kept, max_waiting // 2))

    def keep(self, asked: int) -> None:
        """It was let in."""
        dues = self._due.get(asked)
        if dues:
            dues.remove(min(dues))
            if not dues:
                del self._due[asked]

    def promise_s(self, asked: int, per_s: float, now_s: float) -> float:
        """Seconds to wait, for one that was refused. One who came too early is told the rest of its time."""
        mine = self._due.get(asked)
        if mine and min(mine) > now_s:
            return min(mine) - now_s
        if mine:  # it came when it was told, and there was no room: it is the next
            self.keep(asked)
            self._due.setdefault(asked, []).append(now_s + MIN_RETRY_S)
            return MIN_RETRY_S
        if per_s <= 0:
            return MAX_RETRY_S
        due = max(now_s, self._last_s) + 1 / (_PROMISED_SHARE * per_s)
        if due - now_s > _MAX_PROMISE_S:
            return _MAX_PROMISE_S
        self._last_s = due
        self._due.setdefault(asked, []).append(max(due, now_s + MIN_RETRY_S))
        return max(MIN_RETRY_S, due - now_s)

    def _forget(self, now_s: float) -> None:
        for asked, dues in list(self._due.items()):
            left = [due for due in dues if due + _GRACE_S > now_s]
            if left:
                self._due[asked] = left
            else:
                del self._due[asked]


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


def refusal(admitted: Admitted, per_s: float, promised_s: float | None = None) -> HeadraceError | None:
    """None when the request is in the queue; otherwise the error to raise. `promised_s`: where room is kept for it."""
    if admitted.decision in ("accepted", "duplicate"):
        return None
    if admitted.decision in _WORDS:
        unit, whose = _WORDS[admitted.decision]
        figure, limit = admitted.detail
        return Overloaded(
            f"{whose} is full: {figure} {unit} with this request, the limit is {limit}",
            retry_after_s=retry_after_s(1.0, per_s) if promised_s is None else promised_s,
        )
    if admitted.decision == "too_late":
        ahead, limit = (int(part) for part in admitted.detail)
        return DeadlineUnreachable(
            f"the deadline cannot be met: {ahead} requests are before this one, about {ahead / per_s:.1f} s of work",
            retry_after_s=retry_after_s(ahead - limit, per_s),
        )
    return IdempotencyConflict("the idempotency key belongs to a request with another body", param="idempotency-key")
