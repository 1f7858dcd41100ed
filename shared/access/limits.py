"""A tenant's limits in Redis: buckets of requests and tokens, and places for requests at once.

In the slot {<tenant>}, apart from the queue's: reserve, admit, and refund when admission refuses. Every call is one
atomic script, idempotent by request id, and may be repeated blindly: a request is charged once and refunded once.
A place is a lease that `hold` renews, so that a gateway that dies cannot keep it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shared import keys
from shared.access.entries import Tenant
from shared.redis_client import Scripts

# Both buckets fill within a minute: what is older is worth nothing.
KEEP_MS = 60_000
_MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Bucket:
    """One bucket as it stands: its limit a minute, and what is used of it."""

    limit: int
    used: float

    @property
    def remaining(self) -> int:
        return max(0, int(self.limit - self.used))

    @property
    def full_after_s(self) -> float:
        return self.used * _MINUTE_S / self.limit


@dataclass(frozen=True, slots=True)
class LimitStanding:
    """After a call: `verdict` as in lua/reserve.lua and lua/refund.lua; a bucket without a limit is None."""

    verdict: str
    wait_ms: int
    requests: Bucket | None
    tokens: Bucket | None
    num_held: int


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """The books of one tenant, under the limits of `tenant`."""

    scripts: Scripts
    tenant: Tenant
    lease_ms: int

    async def reserve(self, request_id: str, tokens: int) -> LimitStanding:
        """`reserved`, or what is lacking: then nothing was charged."""
        t = self.tenant
        return await self._run(
            "reserve", request_id, tokens, t.requests_per_min, t.tokens_per_min, t.max_concurrency, self.lease_ms,
            KEEP_MS,
        )  # fmt: skip

    async def refund(self, request_id: str, *, paid_requests: int = 0, paid_tokens: int = 0) -> LimitStanding:
        """Give back all but what is paid for, and the place. `refunded`, `closed` or `unknown`."""
        t = self.tenant
        return await self._run(
            "refund", request_id, paid_requests, paid_tokens, t.requests_per_min, t.tokens_per_min, KEEP_MS
        )

    async def hold(self, request_ids: Sequence[str]) -> int:
        """Renew the places of requests that go on; how many were."""
        reply = await self.scripts.run("hold", self._key, self.lease_ms, KEEP_MS, *request_ids)
        return int(reply[0])

    @property
    def _key(self) -> str:
        return keys.buckets(self.tenant.name)

    async def _run(self, script: str, *args: str | int) -> LimitStanding:
        reply: list[Any] = await self.scripts.run(script, self._key, *args)
        t = self.tenant
        return LimitStanding(
            verdict=reply[0].decode(),
            wait_ms=int(reply[1]),
            requests=Bucket(t.requests_per_min, float(reply[2])) if t.requests_per_min else None,
            tokens=Bucket(t.tokens_per_min, float(reply[3])) if t.tokens_per_min else None,
            num_held=int(reply[4]),
        )
