"""Who asks, and for how much: tenants of weight 4 and 1 and the gateways they come in by.

Every tenant always has something waiting. Those of weight 1 come in by the second gateway only.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

BOTH_GATEWAYS, SECOND_ONLY = (0, 1), (1,)
_HEAVY_ONE_IN = 10


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens: prompts evenly between two bounds; answers lognormal, as real ones are, up to a bound."""

    prompt: tuple[int, int]
    answer: tuple[float, float]
    max_answer: int

    def draw(self, rng: random.Random) -> tuple[int, int]:
        answer = int(rng.lognormvariate(*self.answer))
        return rng.randint(*self.prompt), max(2, min(self.max_answer, answer))


@dataclass(frozen=True, slots=True)
class Tenant:
    """`backlog` requests of it are asked for at any time; `gateways` by number."""

    name: str
    weight: float
    gateways: tuple[int, ...]
    backlog: int


def two_tenants(backlog_a: int, backlog_b: int) -> list[Tenant]:
    return [Tenant("A", 4, BOTH_GATEWAYS, backlog_a), Tenant("B", 1, SECOND_ONLY, backlog_b)]


def many_tenants(number: int) -> list[Tenant]:
    """Each with two requests: where one runs, the other waits. Every tenth is of weight 4."""
    heavy, light = (4, BOTH_GATEWAYS), (1, SECOND_ONLY)
    return [Tenant(f"t-{i}", *(light if i % _HEAVY_ONE_IN else heavy), 2) for i in range(number)]


def newcomers(number: int) -> list[Tenant]:
    """Tenants nobody knew: each comes once, with one request."""
    return [Tenant(f"newcomer-{i}", 1, (0,), 1) for i in range(number)]
