"""Limits free of machinery: what a request is charged, what it pays in the end, a refusal, the reply's headers.

Pure. What a client asked for and got is paid: prompt and answer. Nothing is paid for an answer we failed to give.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shared.access.entries import Tenant
from shared.access.limits import Bucket, LimitStanding
from shared.errors import HeadraceError, Overloaded, RateLimited, Unavailable
from shared.registry import RequestRecord
from shared.schemas import Request, State

# A place gets free when a request ends, which nobody can tell: what a client should wait before it looks again.
_PLACE_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Payment:
    requests: int
    tokens: int


def tokens_of(request: Request) -> int:
    """What is reserved: the prompt, and the longest answer of every choice."""
    return len(request.prompt_ids) + request.params.n * request.params.max_tokens


def payment_of(record: RequestRecord) -> Payment | None:
    """What a request has to pay, None while it goes on.

    ended                          requests  tokens
    finished                       1         prompt and answer
    cancelled, expired: with text  1         prompt and what was made
    cancelled: before              1         the prompt, if it was taken
    expired: before                0         0
    failed, dead                   0         0
    """
    if not record.is_done:
        return None
    is_unserved = record.state is State.EXPIRED and not record.num_tokens
    if is_unserved or record.state in (State.FAILED, State.DEAD):
        return Payment(0, 0)
    return Payment(1, record.prompt_tokens + record.num_tokens if record.attempt else 0)


def refusal_of(standing: LimitStanding, tenant: Tenant, tokens: int) -> HeadraceError | None:
    """None when the request was reserved; else the error to raise."""
    if standing.verdict == "reserved":
        return None
    if standing.verdict == "concurrency":
        words = (
            f"{standing.num_held} requests of this API key's tenant run or wait, the limit is {tenant.max_concurrency}"
        )
        return Overloaded(words, retry_after_s=_PLACE_RETRY_S)
    if standing.verdict not in ("requests", "tokens"):
        return Unavailable("the request was given up while its limits were checked")
    bucket, wanted = (standing.requests, 1) if standing.verdict == "requests" else (standing.tokens, tokens)
    assert bucket is not None
    wait_s = standing.wait_ms / 1000
    return RateLimited(
        f"rate limit reached on {standing.verdict} per minute: limit {bucket.limit}, used {math.ceil(bucket.used)}, "
        f"requested {wanted}; try again in {duration(wait_s)}",
        retry_after_s=wait_s,
    )


def ratelimit_headers(standing: LimitStanding) -> dict[str, str]:
    """Limit, what is left of it, and after how long all of it is, of each bucket that has a limit."""
    headers: dict[str, str] = {}
    for unit, bucket in (("requests", standing.requests), ("tokens", standing.tokens)):
        if bucket is not None:
            headers |= _bucket_headers(unit, bucket)
    return headers


def _bucket_headers(unit: str, bucket: Bucket) -> dict[str, str]:
    return {
        f"x-ratelimit-limit-{unit}": str(bucket.limit),
        f"x-ratelimit-remaining-{unit}": str(bucket.remaining),
        f"x-ratelimit-reset-{unit}": duration(bucket.full_after_s),
    }


def duration(seconds: float) -> str:
    """As OpenAI's headers have it, rounded up to a millisecond: `0s`, `120ms`, `1s`, `17.25s`, `6m0s`, `1h0m0s`."""
    ms = math.ceil(round(seconds * 1000, 3))
    if 0 < ms < 1000:
        return f"{ms}ms"
    minutes, ms = divmod(ms, 60_000)
    text = f"{ms / 1000:g}s"
    if not minutes:
        return text
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{text}" if hours else f"{minutes}m{text}"
