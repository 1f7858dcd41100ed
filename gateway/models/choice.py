"""Who is asked for a name, and in which order. Pure: what is known of the models comes in, candidates come out.

The target of a route with weights is drawn for each request. Draws of a name are the multiples of the golden ratio, not
random numbers: of any N in a row each target gets its share within a few, so a canary of 10% gets 10% of 100 requests
too, and no rhythm of a client meets them. A request with an idempotency key has the draw of its key, always the same.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import sqrt

from shared.routing.table import End

_GOLDEN = (sqrt(5) - 1) / 2
# Why a target is not asked first, as `x-headrace-fallback` says it. The last: it was, and had no room.
NOT_REGISTERED, NO_WORKERS, PAUSED, QUEUE_FULL = "not_registered", "no_workers", "paused", "queue_full"


@dataclass(frozen=True, slots=True)
class Candidate:
    """`reason`: why it is asked in another's place; '' for the target itself. `is_tentative`: others come after it."""

    model: str
    reason: str = ""
    is_tentative: bool = False


@dataclass(slots=True)
class Draws:
    """From 0 to below 1, of each name a sequence of its own. Each gateway begins anywhere in it."""

    _last: dict[str, float] = field(default_factory=dict[str, float])

    def next(self, name: str) -> float:
        draw = self._last[name] = (self._last.get(name, random.random()) + _GOLDEN) % 1.0
        return draw

    def keep(self, names: Sequence[str]) -> None:
        """Forget those of all others."""
        self._last = {name: draw for name, draw in self._last.items() if name in names}


def draw_of(key: str) -> float:
    """Of a key, the same on every gateway."""
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=6).digest()
    return int.from_bytes(digest, "big") / 2**48


def chosen(ends: Sequence[End], draw: float) -> End:
    """The target a draw falls on."""
    for end in ends:
        draw -= end.share
        if draw < 0:
            return end
    return ends[-1]


def in_order(target: str, fallbacks: Sequence[str], trouble_of: Callable[[str], str]) -> list[Candidate]:
    """Candidates to be tried until one has room; the last is the target, whose word is final.

    `trouble_of`: why a model serves nothing now, '' if it does. One that does not is no fallback: a request that has to
    wait for a worker waits at its target. A target that serves is asked first, and again when nobody else had room.
    """
    others = [model for model in dict.fromkeys(fallbacks) if model != target and not trouble_of(model)]
    if not others:
        return [Candidate(target)]
    trouble = trouble_of(target)
    tries = [Candidate(model, trouble or QUEUE_FULL, is_tentative=True) for model in others]
    return [*tries, Candidate(target)] if trouble else [Candidate(target, is_tentative=True), *tries, Candidate(target)]
