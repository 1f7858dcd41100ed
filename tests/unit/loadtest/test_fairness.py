"""How the fairness run judges: by window, by tenant, with a request or 2% of slack."""

from __future__ import annotations

from loadtest.fairness.tenants import many_tenants, two_tenants
from loadtest.fairness.verdict import Ledger, judge


def ledger_of(*served: tuple[float, str, int]) -> Ledger:
    ledger = Ledger(largest=100)
    for at_s, tenant, num_tokens in served:
        ledger.serve(at_s, tenant, num_tokens)
    return ledger


def test_windows_begin_where_it_is_steady_and_end_with_the_last() -> None:
    ledger = ledger_of((4.9, "A", 1), (5.0, "A", 2), (14.9, "A", 4), (15.0, "A", 8), (25.0, "A", 16))
    assert [window["A"] for window in ledger.windows(5, 2)] == [6, 8]


def test_two_tenants_may_be_a_request_off() -> None:
    ledger = ledger_of((0, "A", 8000), (0, "B", 2090))
    (verdict,) = judge(ledger.windows(0, 1), two_tenants(1, 1), ledger.largest)
    assert abs(verdict.off) < verdict.tolerance == 100 / 2090
    assert verdict.most_off < 1


def test_many_tenants_must_make_up_for_each_other() -> None:
    """All off to the same side: the furthest is within its bound, and their sum is not."""
    tenants = many_tenants(20)
    ledger = ledger_of(*((0, t.name, 4000 if t.weight == 4 else 1030) for t in tenants))
    (verdict,) = judge(ledger.windows(0, 1), tenants, ledger.largest)
    assert verdict.off < -verdict.tolerance == -0.02
    assert verdict.most_off < 1


def test_a_tenant_that_starves_is_seen() -> None:
    tenants = many_tenants(20)
    ledger = ledger_of(*((0, t.name, int(1000 * t.weight)) for t in tenants[1:]))
    (verdict,) = judge(ledger.windows(0, 1), tenants, ledger.largest)
    assert verdict.most_off > 9
