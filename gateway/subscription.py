"""One request as its gateway sees it: what was delivered, by which owner. The witness of protocol.md.

Invariant: `journal` is a prefix of what the client will ever be sent; bytes are only added. An event enters
when its offset is what was delivered and its owner is the current one; anything else is repaired.
"""

from __future__ import annotations

import asyncio
import enum
import time
from dataclasses import dataclass, field, replace

from shared.errors import HeadraceError
from shared.metrics.pace import Pace
from shared.request_queue import Ticket
from shared.schemas import State
from shared.token_stream import Message, Repaired, Standing


class Fit(enum.Enum):
    """How a message stands to what was delivered."""

    TAKEN = "taken"  # it continued it, and is in the journal now
    OLD = "old"  # already delivered
    GAP = "gap"  # something before it is missing
    OWNER = "owner"  # another attempt speaks


class Changes:
    """Wakes all who wait, once, for what happens after they began to; between two waits the waiter looks for itself.

    An asyncio.Event costs more, and a token of every stream comes this way.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def tell(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    def next(self) -> asyncio.Future[None]:
        """To be awaited at once."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        return waiting


@dataclass(slots=True)
class Subscription:
    """`body` and `ticket` bring the request back if Redis loses it; who joined a request of another has no body.

    `num_followers`: clients here that read it. `is_witnessed`: this gateway reads on though its clients left.
    """

    model: str
    ticket: Ticket
    body: bytes
    journal: bytearray = field(default_factory=bytearray)
    owner: str = ""
    is_running: bool = False
    is_admitted: bool = False
    is_repairing: bool = False
    error: HeadraceError | None = None
    changes: Changes = field(default_factory=Changes)
    length_at_check: int = 0
    received_at: float = field(default_factory=time.monotonic)
    num_followers: int = 1
    is_witnessed: bool = False
    has_tokens: bool = False
    first_token_s: float | None = None
    has_ended: bool = False
    missing_since: float | None = None
    pace: Pace | None = None
    length_paced: int = 0

    @property
    def request_id(self) -> str:
        return self.ticket.request_id

    @property
    def outlives_its_client(self) -> bool:
        """It goes on without a client, and this gateway can bring it back meanwhile."""
        return bool(self.body) and (self.ticket.is_detached or self.ticket.idempotency_key != "")

    @property
    def is_done(self) -> bool:
        """The end frame was delivered, or the stream is broken."""
        if self.error is not None:
            return True
        start = self.journal.rfind(b"\n", 0, len(self.journal) - 1)
        return self.journal.startswith(b'["e",', start + 1)

    def remaining_ticket(self) -> Ticket:
        """The ticket with its deadlines as they stand now, for bringing the request back."""
        gone_ms = round((time.monotonic() - self.received_at) * 1000)
        start_ms, end_ms = self.ticket.start_deadline_ms, self.ticket.deadline_ms
        return replace(
            self.ticket,
            start_deadline_ms=max(1, start_ms - gone_ms) if start_ms else 0,
            deadline_ms=max(1, end_ms - gone_ms) if end_ms else 0,
        )

    def offer(self, message: Message) -> Fit:
        """Take a published message, or say why not."""
        data = message.frames.encode()
        length = len(self.journal)
        is_current = message.owner == self.owner or length == 0
        if not is_current:
            return Fit.OWNER
        if message.offset > length:
            return Fit.GAP
        skip = length - message.offset
        if skip >= len(data):
            return Fit.OLD
        if skip and bytes(self.journal[message.offset :]) != data[:skip]:
            return Fit.GAP
        self.owner = message.owner
        self.append(data[skip:])
        return Fit.TAKEN

    def splice(self, prefix_length: int, repaired: Repaired) -> None:
        """Add what the journal holds behind the first bytes delivered. Messages may have come since: only what is
        still missing is added, and nothing when they contradict it (the next repair tells)."""
        since = bytes(self.journal[prefix_length:])
        if repaired.tail.startswith(since):
            self.owner = repaired.owner
            self.append(repaired.tail[len(since) :])

    def is_level(self, standing: Standing) -> bool:
        """The journal goes on and is where the client is. Equal lengths alone prove nothing: what was lost may have
        been made anew by another owner, or have ended."""
        is_same = standing.length == len(self.journal) and (not self.journal or standing.owner == self.owner)
        return is_same and standing.state in (State.WAITING, State.RUNNING)

    def append(self, data: bytes) -> None:
        if data:
            self.is_running = True
            self.journal += data
            self.changes.tell()

    def fail(self, error: HeadraceError) -> None:
        self.error = error
        self.changes.tell()
