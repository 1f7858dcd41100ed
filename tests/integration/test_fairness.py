"""Service by weight, on a real server: the fairness run of loadtest, short."""

from __future__ import annotations

from loadtest.fairness import Sizes, judge, simulate, two_tenants
from loadtest.valkey import Valkey
from shared.redis_client import Scripts


async def test_tenants_are_served_by_weight_whatever_gateway_they_come_in_by(valkey: Valkey, scripts: Scripts) -> None:
    """4:1, all of B's requests by one gateway of two; newcomers with one request meanwhile."""
    service = await simulate(valkey, two_tenants(), Sizes((20, 200), (4.5, 0.8), 600), windows=1)
    assert [verdict for verdict in judge(service, 1) if not verdict.is_fair] == []
    assert service.waits and max(service.waits) < 1.0
