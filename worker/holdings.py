"""What this worker holds, and the acknowledgement table: how each holding ends, in one place.

Invariants: `sent` is the journal length known to be in Redis; the bytes behind it are kept until the request is
settled, because a server that lost its tail asks for them again. Lives on the event loop.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from shared import faults
from shared.request_queue import Delivery, RequestQueue
from shared.schemas import EndFrame, TokensFrame, decode_frames, encode_frames
from shared.token_stream import Emission
from worker.engine.outputs import StepOutput
from worker.shares import Share

TELL_EVERY = 16


class Settlement(enum.Enum):
    """Why a holding ends."""

    EMITTED = "emitted"  # its final emit was answered: Redis has settled it
    FENCED = "fenced"  # another owner has it, or it was ended from outside
    CANCELLED = "cancelled"  # told so by a command
    FAILED_HERE = (
        "failed_here"  # the engine failed it: another worker may do better, and too many make it a dead letter
    )
    RELEASED = "released"  # this worker drains: half done is fine, another one continues
    UNKNOWN = "unknown"  # Redis says it is ours and we never got it: the reply of a take was lost


@dataclass(slots=True)
class Held:
    """One request in this worker. `journal` is all of it, `sent` how much of it Redis has.

    How many tokens it has is told with the first, then every `TELL_EVERY`: it would cost Redis a third of an emit.
    """

    request_id: str
    owner: str
    gateways: set[str]
    journal: bytearray
    sent: int
    num_tokens: int
    num_unsent_tokens: int = 0
    num_told: int = 0
    final: str = ""
    usage: bytes = b""
    error: str = ""
    taken_at: float = field(default_factory=time.monotonic)

    def add(self, output: StepOutput) -> None:
        self.journal += encode_frames(output.frames)
        self.num_tokens += output.num_tokens
        self.num_unsent_tokens += output.num_tokens
        if output.outcome is not None:
            self.final = output.outcome.value
            end = output.frames[-1]
            assert isinstance(end, EndFrame)
            self.usage = msgspec.json.encode(end.usage)
            self.error = end.error.code if end.error else ""

    def rewind(self, length: int) -> None:
        """Redis has lost what came after `length`: it is sent again, and its tokens are counted again."""
        self.sent = length
        self.num_told = 0
        self.num_unsent_tokens = _num_tokens(bytes(self.journal[length:]))

    def advance(self, emission: Emission) -> None:
        """This emission is in Redis; what came since stays to be sent."""
        self.sent = emission.offset + len(emission.frames)
        self.num_unsent_tokens -= emission.num_tokens
        self.num_told = emission.total_tokens or self.num_told

    def emission(self) -> Emission:
        """Everything not known to be in Redis."""
        is_told = bool(self.final) or not self.num_told or self.num_tokens - self.num_told >= TELL_EVERY
        return Emission(
            self.request_id, self.owner, self.sent, bytes(self.journal[self.sent :]), self.num_unsent_tokens,
            tuple(self.gateways), self.final, self.usage, self.num_tokens if is_told else 0, self.error,
        )  # fmt: skip


def _num_tokens(journal: bytes) -> int:
    return sum(len(frame.token_ids) for frame in decode_frames(journal) if isinstance(frame, TokensFrame))


class Holdings:
    """The requests this worker holds. `on_room` is called when one ends."""

    def __init__(
        self, queue: RequestQueue, engine: Share, on_room: Callable[[], None], max_crashes: int = 3
    ) -> None:  # fmt: skip
        self._queue = queue
        self._engine = engine
        self._on_room = on_room
        self._max_crashes = max_crashes
        self._held: dict[str, Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Held]:
        # Over a copy: settling while iterating is safe.
        return iter(list(self._held.values()))

    def get(self, request_id: str) -> Held | None:
        return self._held.get(request_id)

    def hold(self, delivery: Delivery) -> Held:
        held = Held(
            delivery.request_id,
            delivery.owner,
            set(delivery.gateways),
            bytearray(delivery.journal),
            len(delivery.journal),
            _num_tokens(delivery.journal) if b'["t",' in delivery.journal else 0,
        )
        self._held[delivery.request_id] = held
        return held

    async def settle(self, request_id: str, owner: str, how: Settlement) -> None:
        """The acknowledgement table. Redis is told only where it does not know yet: of what goes back."""
        held = self._held.get(request_id)
        if held is not None and held.owner == owner:
            del self._held[request_id]
            self._on_room()
            if how is not Settlement.EMITTED:
                self._engine.abort([request_id])
        if how in (Settlement.RELEASED, Settlement.UNKNOWN, Settlement.FAILED_HERE):
            await faults.hit("release")
            max_crashes = self._max_crashes if how is Settlement.FAILED_HERE else 0
            await self._queue.release(request_id, owner, max_crashes=max_crashes)

    def drop_all(self) -> None:
        """The lease is lost: all of it belongs to others now."""
        self._engine.abort(list(self._held))
        self._held.clear()
        self._on_room()
