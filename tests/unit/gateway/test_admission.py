from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.admission import MAX_RETRY_S, DrainRate, eta_ms, mark_of, max_ahead, refusal, retry_after_s, within_share
from shared.errors import DeadlineUnreachable, IdempotencyConflict, Overloaded
from shared.request_queue import Admitted, Bounds
from shared.schemas import Request, SamplingParams


def test_the_rate_is_what_was_taken_while_some_waited() -> None:
    rate = DrainRate()
    for total, at_s, is_draining in ((0, 0, True), (4, 1, True), (4, 50, False), (4, 51, True), (8, 52, True)):
        rate.observe(total, at_s, is_draining=is_draining)
    assert rate.per_s == pytest.approx(4.0)


def test_long_requests_that_end_together_have_a_steady_rate() -> None:
    """Eight at once every 16 seconds: as soon as some were taken, it is told within a factor of two, at any moment."""
    rate = DrainRate()
    told: list[float] = []
    for second in range(200):
        rate.observe(8 * (second // 16), second, is_draining=True)
        told.append(rate.per_s)
    assert set(told[:16]) == {0.0}
    assert min(told[20:]) > 0.25 and max(told[20:]) < 1.0


def test_the_rate_follows_a_change() -> None:
    rate = DrainRate()
    for second in range(60):
        rate.observe(20 * second if second < 50 else 1000 + 5 * (second - 50), second, is_draining=True)
    assert rate.per_s == pytest.approx(5.0, rel=0.01)


def test_how_long_a_place_takes() -> None:
    assert eta_ms(3, 2.0) == 1500
    assert eta_ms(3, 0.0) is None


@pytest.mark.parametrize(
    ("deadlines_ms", "per_s", "most"),
    [((0, 0), 2.0, -1), ((5000, 0), 2.0, 10), ((5000, 1000), 2.0, 2), ((100, 0), 2.0, 0), ((5000, 0), 0.0, -1)],
)
def test_how_many_may_be_before_a_deadline(deadlines_ms: tuple[int, int], per_s: float, most: int) -> None:
    assert max_ahead(deadlines_ms, per_s) == most


def test_a_share_of_the_room_is_a_part_of_each_bound_but_for_one_request_alone() -> None:
    bounds = Bounds(100, 1000, 10_000, tenant_max_waiting=7)
    assert within_share(bounds, 0.25, 10, 10) == Bounds(100, 250, 2500, 7, class_max_waiting=25)
    assert within_share(bounds, 0.25, 900, 20_000) == Bounds(100, 900, 10_000, 7, class_max_waiting=25)
    assert within_share(bounds, 0.001, 1, 10).class_max_waiting == 1


def test_a_refusal_has_its_type_and_says_when_it_could_be_met() -> None:
    late = refusal(Admitted("too_late", ("30", "10")), 2.0)
    assert isinstance(late, DeadlineUnreachable) and 10 <= late.retry_after_s <= 12.5
    assert isinstance(refusal(Admitted("conflict", ("r1",)), 2.0), IdempotencyConflict)
    assert isinstance(refusal(Admitted("tokens_full", ("2", "1")), 2.0), Overloaded)
    assert refusal(Admitted("accepted", ("0", "0")), 2.0) is None


def test_a_full_queue_says_what_was_promised_and_what_is_kept() -> None:
    promised = refusal(Admitted("full", ("50", "60", "11", "1450")), 2.0)
    assert isinstance(promised, Overloaded) and promised.retry_after_s == 1.45
    assert "50 requests with this request and 11 places kept for clients refused before" in promised.message
    unknown = refusal(Admitted("full", ("61", "60", "0", "-1")), 0.0)
    assert isinstance(unknown, Overloaded) and unknown.retry_after_s == MAX_RETRY_S and "kept" not in unknown.message


@pytest.mark.parametrize(
    "change", [{"tenant": "u"}, {"prompt_ids": (1, 2, 4)}, {"params": SamplingParams(max_tokens=9, seed=1)}]
)
def test_a_client_is_known_by_what_it_asks_and_not_by_what_the_gateway_drew(change: dict[str, Any]) -> None:
    asked = Request(
        request_id="r1", model="m", prompt_ids=(1, 2, 3), params=SamplingParams(max_tokens=8, seed=1), tenant="t"
    )
    again = msgspec.structs.replace(asked, request_id="r2", params=SamplingParams(max_tokens=8, seed=2))
    assert mark_of(asked, "") == mark_of(again, "") != mark_of(msgspec.structs.replace(asked, **change), "")


def test_a_client_with_a_key_is_known_by_it() -> None:
    asked = Request(
        request_id="r1", model="m", prompt_ids=(1, 2, 3), params=SamplingParams(max_tokens=8, seed=1), tenant="t"
    )
    assert len({mark_of(asked, key) for key in ("", "k1", "k2")}) == 3


def test_a_wait_is_within_what_clients_keep_to() -> None:
    assert (retry_after_s(1, 100.0, jitter=1.0), retry_after_s(1000, 1.0, jitter=1.0)) == (1.0, 30.0)
