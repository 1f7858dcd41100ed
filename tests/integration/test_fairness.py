"""Service by weight, on a real server: the fairness run of loadtest, short."""

from __future__ import annotations

from loadtest.fairness.tenants import Sizes, two_tenants
from loadtest.fairness.verdict import WINDOW_S, judge
from loadtest.fairness.virtual import MODEL, simulate
from loadtest.valkey import Valkey
from shared import keys
from shared.redis_client import Scripts


async def test_tenants_are_served_by_weight_whatever_gateway_they_come_in_by(valkey: Valkey, scripts: Scripts) -> None:
    """4:1, all of B's requests by one gateway of two; newcomers with one request meanwhile."""
    tenants = two_tenants(64, 64)
    ledger = await simulate(valkey, tenants, Sizes((20, 200), (4.5, 0.8), 600), windows=1)
    (verdict,) = judge(ledger.windows(WINDOW_S, 1), tenants, ledger.largest)
    assert abs(verdict.off) <= verdict.tolerance and verdict.most_off <= 1
    assert ledger.waits and max(ledger.waits) < 1.0


async def test_lanes_do_not_change_who_is_served_how_much(valkey: Valkey, scripts: Scripts) -> None:
    """The same, each request one of a conversation and kept for the worker that served its last turn."""
    tenants = two_tenants(64, 64)
    ledger = await simulate(valkey, tenants, Sizes((20, 200), (4.5, 0.8), 600), windows=1, lane_ms=20)
    (verdict,) = judge(ledger.windows(WINDOW_S, 1), tenants, ledger.largest)
    assert abs(verdict.off) <= verdict.tolerance and verdict.most_off <= 1
    assert ledger.waits and max(ledger.waits) < 1.0
    hits = await scripts.client.hget(keys.counts(MODEL), "lane_hits")
    assert int(hits or 0) > 100
