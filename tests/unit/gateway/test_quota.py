"""What is charged and paid, refusals, and the headers of rate limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.openai.allowance import Size, check_allowed, longest_answer
from gateway.quota import Payment, duration, payment_of, ratelimit_headers, refusal_of
from shared.access.entries import Tenant
from shared.access.limits import Bucket, LimitStanding
from shared.errors import InvalidRequest, Overloaded, RateLimited, Unavailable
from shared.registry import RequestRecord
from shared.schemas import State

TENANT = Tenant(name="acme", requests_per_min=60, tokens_per_min=1000, max_concurrency=2)
STANDING = LimitStanding("reserved", 0, Bucket(60, 2.5), Bucket(1000, 250), 1)
RECORD = RequestRecord(
    request_id="r", state=State.FINISHED, owner="w/1/1", attempt=1, tenant="acme", service_class="default",
    prompt_tokens=10, max_tokens=100, n=1, num_tokens=7, is_detached=False, has_key=False, view="", admitted_at=1,
    taken_at=2, first_token_at=3, finished_at=4, error="",
)  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.0201, "21ms"), (1, "1s"), (1.5, "1.5s"), (59.9999, "1m0s"), (360, "6m0s"), (3601.25, "1h0m1.25s")],
)
def test_a_duration_is_written_as_openai_writes_it(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_headers_tell_limit_rest_and_reset_of_each_bucket() -> None:
    assert ratelimit_headers(STANDING) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "57",
        "x-ratelimit-reset-requests": "2.5s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "750",
        "x-ratelimit-reset-tokens": "15s",
    }
    assert ratelimit_headers(LimitStanding("reserved", 0, None, None, 1)) == {}


@pytest.mark.parametrize(
    ("changes", "payment"),
    [
        ({"state": State.WAITING, "attempt": 0, "num_tokens": 0}, None),
        ({"state": State.RUNNING}, None),
        ({}, Payment(1, 17)),
        ({"state": State.CANCELLED}, Payment(1, 17)),
        ({"state": State.CANCELLED, "num_tokens": 0}, Payment(1, 10)),
        ({"state": State.CANCELLED, "attempt": 0, "num_tokens": 0}, Payment(1, 0)),
        ({"state": State.EXPIRED}, Payment(1, 17)),
        ({"state": State.EXPIRED, "num_tokens": 0}, Payment(0, 0)),
        ({"state": State.FAILED}, Payment(0, 0)),
        ({"state": State.DEAD}, Payment(0, 0)),
    ],
)
def test_what_an_end_costs(changes: dict[str, object], payment: Payment | None) -> None:
    assert payment_of(replace(RECORD, **changes)) == payment  # type: ignore[arg-type]


def test_a_refusal_waits_as_long_as_its_bucket() -> None:
    error = refusal_of(replace(STANDING, verdict="tokens", wait_ms=12_345), TENANT, 800)
    assert isinstance(error, RateLimited) and error.retry_after_s == 12.345
    assert "limit 1000, used 250, requested 800" in error.message


def test_a_refused_place_is_no_exact_wait() -> None:
    error = refusal_of(replace(STANDING, verdict="concurrency"), TENANT, 1)
    assert isinstance(error, Overloaded) and not isinstance(error, RateLimited)


def test_a_reservation_that_was_closed_is_never_a_pass() -> None:
    assert refusal_of(STANDING, TENANT, 1) is None
    assert isinstance(refusal_of(replace(STANDING, verdict="closed"), TENANT, 1), Unavailable)


@pytest.mark.parametrize(
    ("size", "param", "limit"),
    [
        (Size(51, 1, 1), "messages", "max_prompt_tokens 50"),
        (Size(1, 31, 1), "max_tokens", "max_output_tokens 30"),
        (Size(40, 30, 3), "max_tokens", "tokens_per_min 100"),
    ],
)
def test_a_size_over_a_limit_is_refused_by_name(size: Size, param: str, limit: str) -> None:
    tenant = Tenant(name="t", max_prompt_tokens=50, max_output_tokens=30, tokens_per_min=100)
    check_allowed(tenant, Size(50, 25, 2), prompt_param="messages", answer_param="max_tokens")
    with pytest.raises(InvalidRequest, match=limit) as refused:
        check_allowed(tenant, size, prompt_param="messages", answer_param="max_tokens")
    assert refused.value.param == param


def test_an_answer_nobody_bounds_is_as_long_as_everything_allows() -> None:
    assert longest_answer(Tenant(name="t"), 10, 1, 500) == 500
    assert longest_answer(Tenant(name="t", max_output_tokens=30), 10, 1, 500) == 30
    assert longest_answer(Tenant(name="t", tokens_per_min=100), 10, 3, 500) == 30
    assert longest_answer(Tenant(name="t", tokens_per_min=5), 10, 1, 500) == 1
