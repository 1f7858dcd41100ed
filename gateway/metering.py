"""The dispatcher under its tenants' limits: reserve, then submit; what a request did not use goes back at its end.

A limited tenant's request is charged its prompt and its longest answer before it is admitted. How it ended and
what it made is read from its hash, so that every end is charged alike: one this gateway delivered, one whose
client left, one that went on without a client. Invariants: what is reserved is refunded or paid exactly once;
a place is renewed while its request lives, and only then.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from redis.exceptions import RedisError

from gateway.dispatch import Dispatcher, Placed
from gateway.fanout import Fanout
from gateway.http.options import AdmissionOptions
from gateway.models.catalogue import Catalogue
from gateway.quota import Payment, payment_of, tokens_of
from shared.access.entries import Tenant
from shared.access.limits import LimitStanding, TenantLimits
from shared.config import GatewaySettings
from shared.errors import HeadraceError, Unavailable
from shared.observability import GatewayMetrics
from shared.redis_client import AWAY, Scripts, end_tasks
from shared.registry import read_record
from shared.schemas import EndFrame, Frame, Request

log = logging.getLogger(__name__)
_RETRY_S = 0.1
# A client's last bytes wait for its refund at most so long.
_PATIENCE_S = 1.0
# What one call renews: a script stays under a few milliseconds.
_PAGE = 100
T = TypeVar("T")


@dataclass(slots=True)
class _Reservation:
    """`charge_id` names it in the tenant's books: a request that is tried with several models is charged for each anew.
    `has_place`: it was reserved. `idle_since`: since when nobody follows it here (monotonic)."""

    request: Request
    limits: TenantLimits
    charge_id: str
    num_followers: int = 0
    idle_since: float = field(default_factory=time.monotonic)
    has_place: bool = False
    is_refused: bool = False


class MeteredDispatcher(Dispatcher):
    """One a gateway process. start; reserve before submit; stop."""

    def __init__(
        self, settings: GatewaySettings, scripts: Scripts, gateway: str, fanout: Fanout, catalogue: Catalogue,
        metrics: GatewayMetrics,
    ) -> None:  # fmt: skip
        super().__init__(settings, scripts, gateway, fanout, catalogue, metrics)
        self._reserved: dict[str, _Reservation] = {}  # by charge
        self._of_request: dict[str, _Reservation] = {}
        self._background: set[asyncio.Task[object]] = set()

    def start(self) -> None:
        self._tender = asyncio.create_task(self._tend_forever())

    async def stop(self) -> None:
        """Places left over run out with their leases."""
        await end_tasks(self._tender)
        if self._background:
            await asyncio.wait(self._background, timeout=self._settings.redis_timeout_s)
        await super().stop()

    async def reserve(self, tenant: Tenant, request: Request) -> LimitStanding | None:
        """Charge a request to its tenant; None for one without limits. Not `reserved`: nothing was charged.

        Raises Unavailable when that cannot be asked: then it is not let through.
        """
        if not tenant.is_limited:
            return None
        limits = TenantLimits(self._scripts, tenant, self._settings.lease_ms)
        charge_id = f"{request.request_id}~{secrets.token_hex(3)}"
        reservation = self._reserved[charge_id] = _Reservation(request, limits, charge_id)
        self._of_request[request.request_id] = reservation
        task = self._in_background(self._repeat_reserve(reservation))
        try:
            standing = await asyncio.shield(task)
        except BaseException:
            self._in_background(self._give_up(reservation, task))
            raise
        reservation.has_place = standing.verdict == "reserved"
        if not reservation.has_place:
            self._forget(reservation)
        return standing

    async def submit(self, request: Request, options: AdmissionOptions) -> Placed:
        """A request that is refused, or joins another, pays nothing."""
        try:
            placed = await super().submit(request, options)
        except HeadraceError:
            await self._refuse(request.request_id)
            raise
        if placed.request_id != request.request_id:
            await self._refuse(request.request_id)
        return placed

    async def withdraw(self, request_id: str) -> None:
        """It pays nothing."""
        await self._refuse(request_id)
        await super().withdraw(request_id)

    async def join_run(self, request: Request, options: AdmissionOptions) -> Placed | None:
        """Join the run that an idempotency key has, if it has one: that was charged when it was admitted.

        Raises IdempotencyConflict when it belongs to another body.
        """
        if not options.key_hash:
            return None
        found = await self._lookup.run_elsewhere(request.tenant, options.key_hash, options.body_digest, "")
        return None if found is None else await self.join(found.record.request_id, request.tenant)

    @asynccontextmanager
    async def follow(self, request_id: str) -> AsyncGenerator[AsyncGenerator[list[Frame]]]:
        """The refund comes before the end, so that a client's next request finds it."""
        reservation = self._of_request.get(request_id)
        async with super().follow(request_id) as frames:
            if reservation is None:
                yield frames
                return
            reservation.num_followers += 1
            settling = self._settle_at_end(reservation, frames)
            try:
                yield settling
            finally:
                await settling.aclose()
                reservation.num_followers -= 1
                reservation.idle_since = time.monotonic()

    # reserving

    async def _repeat_reserve(self, reservation: _Reservation) -> LimitStanding:
        """Repeats while the server is away, as long as one timeout: reserving is idempotent."""
        deadline = time.monotonic() + self._settings.redis_timeout_s
        request = reservation.request
        while True:
            try:
                return await reservation.limits.reserve(reservation.charge_id, tokens_of(request))
            except (*AWAY, TimeoutError) as error:
                if time.monotonic() > deadline:
                    raise Unavailable(f"the limits of this API key cannot be checked: {error}") from error
                await asyncio.sleep(_RETRY_S)
            except RedisError as error:
                raise Unavailable(f"the limits of this API key cannot be checked: {error}") from error

    async def _give_up(self, reservation: _Reservation, reserving: asyncio.Task[LimitStanding]) -> None:
        """Nobody waits for the answer, which may come, or may have been lost."""
        await asyncio.wait([reserving])
        await self._refuse(reservation.request.request_id)

    async def _refuse(self, request_id: str) -> None:
        """All goes back; if that cannot be said now, tending says it again."""
        reservation = self._of_request.get(request_id)
        if reservation is not None:
            reservation.has_place, reservation.is_refused = False, True
            await self._within_patience(self._try_settle(reservation))

    # settling

    async def _settle_at_end(
        self, reservation: _Reservation, frames: AsyncGenerator[list[Frame]]
    ) -> AsyncGenerator[list[Frame]]:
        async for batch in frames:
            if isinstance(batch[-1], EndFrame):
                await self._within_patience(self._try_settle(reservation))
            yield batch

    async def _try_settle(self, reservation: _Reservation) -> None:
        try:
            await self._settle(reservation)
        except (RedisError, OSError) as error:
            log.warning("limits_not_settled", extra={"error": str(error)})

    async def _settle(self, reservation: _Reservation) -> None:
        """Pay and refund if the request is over. Raises RedisError."""
        payment = Payment(0, 0) if reservation.is_refused else await self._payment(reservation)
        if payment is None:
            return
        charge_id, limits = reservation.charge_id, reservation.limits
        await limits.refund(charge_id, paid_requests=payment.requests, paid_tokens=payment.tokens)
        self._forget(reservation)

    def _forget(self, reservation: _Reservation) -> None:
        self._reserved.pop(reservation.charge_id, None)
        if self._of_request.get(reservation.request.request_id) is reservation:
            del self._of_request[reservation.request.request_id]

    async def _payment(self, reservation: _Reservation) -> Payment | None:
        """What a request that is over has to pay; None while it goes on."""
        request = reservation.request
        record = await read_record(self._scripts.client, request.model, request.request_id)
        if record is not None:
            return payment_of(record)
        # Not admitted yet, or Redis has lost it and the gateway brings it back; or it is forgotten for good.
        idle_s = time.monotonic() - reservation.idle_since
        is_forgotten = reservation.num_followers == 0 and idle_s > 2 * self._settings.redis_timeout_s
        return Payment(1, tokens_of(request)) if is_forgotten else None

    # tending

    async def _tend_forever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.heartbeat_ms / 1000)
            try:
                await self._tend()
            except (RedisError, OSError) as error:
                log.warning("places_not_renewed", extra={"error": str(error)})

    async def _tend(self) -> None:
        """Renews the places of what goes on, and settles what ended without a client of this gateway."""
        by_tenant: dict[str, list[_Reservation]] = {}
        for reservation in self._reserved.values():
            if reservation.has_place:
                by_tenant.setdefault(reservation.limits.tenant.name, []).append(reservation)
        for held in by_tenant.values():
            for page in (held[start : start + _PAGE] for start in range(0, len(held), _PAGE)):
                await page[0].limits.hold([reservation.charge_id for reservation in page])
        for reservation in list(self._reserved.values()):
            if reservation.is_refused or (reservation.has_place and reservation.num_followers == 0):
                await self._settle(reservation)

    async def _within_patience(self, call: Coroutine[Any, Any, None]) -> None:
        """What fails or takes longer is taken up by tending."""
        await asyncio.wait({self._in_background(call)}, timeout=_PATIENCE_S)

    def _in_background(self, call: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Goes on when its caller is gone."""
        task = asyncio.create_task(call)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task
