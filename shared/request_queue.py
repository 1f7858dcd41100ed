"""Both ends of the queue: admit (gateway), take, heartbeat, release (worker), cancel, attach, reap (anybody).

One object a model revision. Each method is one atomic script and idempotent: it may be repeated blindly after
a lost reply. No method retries by itself; RedisError passes through.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from shared import keys
from shared.redis_client import Scripts
from shared.text.prefixes import NO_PREFIXES, Prefixes

# Requests one call gives back: it is to hold the server for less than 5 ms.
_PAGE = 40


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may wait, for one model; 0 is no bound. `class_max_waiting`: requests of the class of this one."""

    max_waiting: int
    max_waiting_tokens: int
    max_waiting_bytes: int
    tenant_max_waiting: int = 0
    class_max_waiting: int = 0


@dataclass(frozen=True, slots=True)
class Ticket:
    """What `admit` is told of a request besides its body. Deadlines are milliseconds from now, 0 for none.

    `view`: how its client sees it, for whoever takes its stream over. `class_weight` 0 leaves it as it is.
    `max_ahead`: how many may be before it so that its deadlines can be met, -1 for any number. `mark`: by what its
    client is known when it was refused and comes back. `drain_per_s`: requests a second, 0 while that is unknown.
    `claimed_until_ms`: how long, by the server's clock, its idempotency key is this model's; 0: not claimed.
    `lane_ms`: how long it is kept for a worker that took one of its `prefixes` lately; 0: for nobody.
    """

    request_id: str
    service_class: str
    tenant: str
    prompt_tokens: int
    max_tokens: int
    n: int
    start_deadline_ms: int = 0
    deadline_ms: int = 0
    is_detached: bool = False
    traceparent: str = ""
    idempotency_key: str = ""
    body_digest: str = ""
    tenant_weight: float = 1.0
    view: str = ""
    class_weight: float = 0.0
    max_ahead: int = -1
    mark: str = ""
    drain_per_s: float = 0.0
    claimed_until_ms: int = 0
    lane_ms: int = 0
    prefixes: Prefixes = NO_PREFIXES


@dataclass(frozen=True, slots=True)
class Admitted:
    """`decision`: accepted, duplicate, same, conflict, unclaimed, full, tokens_full, bytes_full, tenant_full,
    class_full or too_late.

    `detail`: the figures; of `accepted` how many waited, and how many of them are expected to go first; of `same`
    and `conflict` the id of the request that has the key; of `full` also the places kept for others, and how long (ms)
    until it is let in, -1 for unknown.
    """

    decision: str
    detail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Delivery:
    """A request handed to a worker, with the journal so far (its `taken` frame included).

    `start_left_ms` and `left_ms`: until it must have its first token, and be over; 0 for no such deadline.
    """

    request_id: str
    owner: str
    body: bytes
    journal: bytes
    gateways: tuple[str, ...]
    start_left_ms: int = 0
    left_ms: int = 0


@dataclass(frozen=True, slots=True)
class Taken:
    deliveries: list[Delivery]
    num_waiting: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """`owned` is what Redis thinks this worker holds: id -> (owner, gateways)."""

    owned: dict[str, tuple[str, tuple[str, ...]]]
    commands: list[bytes]
    num_waiting: int


@dataclass(frozen=True, slots=True)
class Reaped:
    is_grace: bool = False
    requeued: int = 0
    dead: int = 0
    expired: int = 0
    orphans: int = 0
    has_more: bool = False


class LeaseLost(Exception):
    """The worker's lease was reaped: it drops everything and registers under a new id."""


@dataclass(slots=True)
class RequestQueue:
    """The queue of one model revision."""

    scripts: Scripts
    model: str
    retention_s: int
    lease_ms: int
    _key: str = field(init=False)

    def __post_init__(self) -> None:
        self._key = keys.counts(self.model)

    # gateway

    async def admit(
        self, ticket: Ticket, body: bytes, bounds: Bounds, *, gateway: str, prefix: bytes = b"", witness: bool = False
    ) -> Admitted:
        """Accept once or refuse. `witness`: a request Redis lost, brought back past all bounds."""
        reply = await self.scripts.run(
            "admit", self._key, ticket.request_id, gateway, body, prefix, "witness" if witness else "new",
            ticket.service_class, keys.escape(ticket.tenant), ticket.prompt_tokens, ticket.max_tokens, ticket.n,
            ticket.start_deadline_ms, ticket.deadline_ms, int(ticket.is_detached), ticket.traceparent,
            ticket.idempotency_key, ticket.body_digest, bounds.max_waiting, bounds.max_waiting_tokens,
            bounds.max_waiting_bytes, bounds.tenant_max_waiting, self.retention_s, ticket.tenant_weight,
            ticket.view, ticket.class_weight, ticket.max_ahead, ticket.mark, ticket.drain_per_s,
            ticket.claimed_until_ms, bounds.class_max_waiting, ticket.lane_ms, *ticket.prefixes.words(),
        )  # fmt: skip
        return Admitted(_text(reply[0]), tuple(_text(part) for part in reply[1:]))

    async def cancel(self, request_id: str, by: str = "") -> str:
        """`cancelled`, `gone`, or the state it had already ended in. `by`: the operator who asked, for the audit."""
        return _text((await self.scripts.run("cancel", self._key, request_id, self.retention_s, by))[0])

    async def attach(self, request_id: str, gateway: str) -> str:
        """`gone`, or the request's state."""
        return _text((await self.scripts.run("attach", self._key, request_id, gateway))[0])

    async def detach(self, request_id: str, gateway: str) -> str:
        """`left`, `cancelled` (it was the last one), `gone`, or the state it had ended in. Repeated: the same."""
        return _text((await self.scripts.run("detach", self._key, request_id, gateway, self.retention_s))[0])

    async def position(self, request_id: str) -> int | None:
        """How many are expected to be taken before it; None when it does not wait (any more)."""
        (reply,) = await self.scripts.run("position", self._key, request_id)
        return int(reply[1]) if _text(reply[0]) == "waiting" else None

    # worker

    async def register(self, worker: str, nonce: str, info: bytes) -> None:
        await self.scripts.run("register", self._key, worker, nonce, self.lease_ms, info)

    async def take(self, worker: str, nonce: str, *, slots: int, room: int, patience_ms: int = 5000) -> Taken:
        """What fits in `slots` sequences and `room` tokens, now. Does not renew the lease. Raises LeaseLost."""
        reply = await self.scripts.run("take", self._key, worker, nonce, slots, room, patience_ms, self.retention_s)
        _require_lease(reply)
        return Taken([_delivery(row) for row in reply[2:]], int(reply[1]))

    async def heartbeat(self, worker: str, nonce: str, load: bytes) -> Heartbeat:
        """Renew the lease and compare books. Raises LeaseLost."""
        reply = await self.scripts.run("heartbeat", self._key, worker, nonce, self.lease_ms, load)
        _require_lease(reply)
        owned = {_text(r[0]): (_text(r[1]), _names(r[2])) for r in reply[1]}
        return Heartbeat(owned, list(reply[2]), int(reply[3]))

    async def tell_adapters(self, worker: str, nonce: str, adapters: bytes) -> None:
        """How each adapter of this worker stands (JSON), for operators. Raises LeaseLost."""
        _require_lease(await self.scripts.run("tell_adapters", self._key, worker, nonce, adapters))

    async def order(self, worker: str, words: bytes, by: str) -> bool:
        """An operator's command (a JSON array) for a worker. False: there is none of this id."""
        return _text((await self.scripts.run("order", self._key, worker, words, by))[0]) == "told"

    async def release(self, request_id: str, owner: str, *, max_crashes: int = 0) -> bool:
        """Give back without blame; `max_crashes`: with it, as of a crash. False: it was not this owner's any more."""
        reply = await self.scripts.run("release", self._key, request_id, owner, max_crashes, self.retention_s)
        return _text(reply[0]) != "not_owner"

    async def quarantine(self, worker: str, said: bytes, *, keep_ms: int) -> None:
        """Say that a worker without a lease takes nothing (JSON, with `why`), for `keep_ms`; b"": it is over."""
        await self.scripts.run("quarantine", self._key, worker, said, keep_ms)

    async def unregister(self, worker: str, nonce: str, *, page: int = _PAGE) -> None:
        """Leave, in as many calls as it takes to give back what is still held."""
        while _text((await self.scripts.run("unregister", self._key, worker, nonce, page))[0]) == "more":
            pass

    # anybody

    async def reap(self, dead_gateways: Sequence[str], *, max_crashes: int, page: int = _PAGE) -> Reaped:
        """One page of giving back the work of late workers; `has_more`: call again."""
        reply = await self.scripts.run(
            "reap", self._key, self.lease_ms, max_crashes, self.retention_s, page, *dead_gateways
        )
        return Reaped(_text(reply[0]) == "grace", *(int(part) for part in reply[1:5]), has_more=bool(reply[5]))

    async def counts(self) -> dict[str, float]:
        """The model's counters: waiting, waiting_tokens, waiting_bytes, running, totals, class clocks."""
        raw = await self.scripts.client.hgetall(self._key)
        return {_text(name): float(value) for name, value in raw.items()}


def _delivery(row: Sequence[Any]) -> Delivery:
    request_id, owner, body, journal, gateways, start_left_ms, left_ms = row
    return Delivery(
        _text(request_id), _text(owner), body, journal, _names(gateways), int(start_left_ms), int(left_ms)
    )  # fmt: skip


def _require_lease(reply: Sequence[Any]) -> None:
    if _text(reply[0]) == "nolease":
        raise LeaseLost


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _names(value: bytes) -> tuple[str, ...]:
    return tuple(value.decode().split())
