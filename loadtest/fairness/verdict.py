"""Whether service was fair: what each tenant was served in windows of time, against weights of 4 and 1.

A tenant is served its prompts, when they are taken, and its tokens, as they are made. In a window it may be off its
share by the larger of 2% and one request, the largest that came.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from loadtest.fairness.tenants import Tenant

WINDOW_S = 10
SHARE = 0.02


@dataclass(slots=True)
class Ledger:
    """Tokens served to each tenant by second; the largest request; how long newcomers waited for their first token."""

    seconds: Counter[tuple[int, str]] = field(default_factory=Counter[tuple[int, str]])
    largest: int = 0
    waits: list[float] = field(default_factory=list[float])

    def serve(self, at_s: float, tenant: str, num_tokens: int) -> None:
        self.seconds[int(at_s), tenant] += num_tokens

    def windows(self, first_s: int, number: int, length_s: int = WINDOW_S) -> list[Counter[str]]:
        """Tokens by tenant in each of so many windows, from a second on."""
        found = [Counter[str]() for _ in range(number)]
        for (second, tenant), num_tokens in self.seconds.items():
            if first_s <= second < first_s + number * length_s:
                found[(second - first_s) // length_s][tenant] += num_tokens
        return found


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one window. `ratio`: tokens a tenant of weight 4 over those of weight 1; it may be off 4 by `tolerance`.
    `most_off`: the tenant furthest from its share, as a part of what it may be off."""

    ratio: float
    tolerance: float
    most_off: float

    @property
    def off(self) -> float:
        return self.ratio / 4 - 1


def judge(windows: Sequence[Counter[str]], tenants: Sequence[Tenant], largest: int) -> list[Verdict]:
    """The ratio of many tenants must be within 2%: each may be a request off, but they are off both ways."""
    names = {weight: [tenant.name for tenant in tenants if tenant.weight == weight] for weight in (4, 1)}
    verdicts: list[Verdict] = []
    for served in windows:
        heavy, light = (sum(served[name] for name in names[weight]) for weight in (4, 1))
        slack = largest / max(1, min(heavy, light)) if len(tenants) == 2 else 0.0
        ratio = heavy / len(names[4]) / max(1, light) * len(names[1])
        verdicts.append(Verdict(ratio, max(SHARE, slack), _most_off(served, tenants, largest)))
    return verdicts


def _most_off(served: Counter[str], tenants: Sequence[Tenant], largest: int) -> float:
    unit = sum(served[tenant.name] for tenant in tenants) / sum(tenant.weight for tenant in tenants)
    shares = [(tenant.name, unit * tenant.weight) for tenant in tenants]
    return max(abs(served[name] - share) / max(largest, SHARE * share) for name, share in shares)
