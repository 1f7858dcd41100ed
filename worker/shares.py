"""One engine for several served models: each has a share, and sees the engine through it as if it were alone.

    thread (one)  ◀── share of m1 ◀── consumer, publisher, holdings, maintenance of m1
                  ◀── share of m2 ◀── ...                                                   m: a model revision

Room is one for all. What one share was offered and has not used yet, no other is offered; and while several want more
than there is, each gets to an equal number of sequences, so that none waits for the other's long answers. Lives on the
event loop. Invariant: an output goes to the share that added its request, or to nobody.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass

from shared.schemas import Prefix, Request
from worker.engine.outputs import EngineLoad, StepOutput
from worker.engine_thread import EngineThread


@dataclass(slots=True)
class Offer:
    """What a share may take now: sequences and tokens. `is_cut`: it would be more if nobody else wanted any."""

    slots: int
    tokens: int
    is_cut: bool = False


class Shares:
    """All shares of one engine."""

    def __init__(self, thread: EngineThread) -> None:
        self.thread = thread
        thread.on_outputs = self._hand_out
        self.open_ones: list[Share] = []
        self.owners: dict[str, Share] = {}

    def open(self) -> Share:
        share = Share(self)
        self.open_ones.append(share)
        return share

    def offer_to(self, share: Share) -> Offer:
        """All that is free; a part of it while others want some too."""
        load = self.thread.load()
        others = [other for other in self.open_ones if other is not share]
        free = max(0, load.free_slots - sum(other.reserved.slots for other in others))
        tokens = max(0, load.free_tokens - sum(other.reserved.tokens for other in others))
        wanting = [other for other in others if other.wants_more]
        if not wanting:
            return Offer(free, tokens)
        in_use = free + share.num_seqs + sum(other.num_seqs for other in wanting)
        equal = -(-in_use // (len(wanting) + 1))
        slots = min(free, max(0, equal - share.num_seqs))
        return Offer(slots, tokens, is_cut=slots < free)

    def make_room(self) -> None:
        """Something ended, or an offer was not used: it may be worth for each to take again."""
        for share in self.open_ones:
            share.on_room()

    def hold_back(self) -> None:
        """The engine rests while one of the shares cannot send what was made for it."""
        self.thread.pause(is_paused=any(share.is_paused for share in self.open_ones))

    def _hand_out(self, outputs: list[StepOutput]) -> None:
        by_share: dict[Share, list[StepOutput]] = {}
        for output in outputs:
            share = self.owners.get(output.request_id)
            if share is not None:
                by_share.setdefault(share, []).append(output)
        for share, its_own in by_share.items():
            share.on_outputs(its_own)
            for output in its_own:
                if output.outcome is not None:
                    share.forget(output.request_id)


class Share:
    """`on_room` is called when there may be something to take; `on_outputs` with what was made for it."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._seqs: dict[str, int] = {}
        self.num_seqs = 0
        self.reserved = Offer(0, 0)
        self.wants_more = False
        self.is_paused = False
        self.on_room: Callable[[], None] = lambda: None
        self.on_outputs: Callable[[list[StepOutput]], None] = lambda _outputs: None

    @contextlib.contextmanager
    def taking(self) -> Generator[Offer]:
        """What may be taken meanwhile: it is kept from the others until the end."""
        self.reserved = offer = self._shares.offer_to(self)
        try:
            yield offer
        finally:
            self.reserved = Offer(0, 0)
            if offer.slots and any(share.wants_more for share in self._shares.open_ones if share is not self):
                self._shares.make_room()

    def note(self, offer: Offer, num_waiting: int) -> None:
        """What came of an offer. It wants more where it was for lack of room that it did not get all."""
        is_full = self._shares.thread.load().free_slots == 0
        wanted, self.wants_more = self.wants_more, num_waiting > 0 and (offer.is_cut or offer.slots == 0 or is_full)
        if wanted and not self.wants_more:
            self._shares.make_room()

    def add(self, request: Request, prefixes: Sequence[Prefix], *, start_left_ms: int = 0, left_ms: int = 0) -> None:
        """See `EngineThread.add`."""
        self._own(request.request_id, request.params.n)
        self._shares.thread.add(request, prefixes, start_left_ms=start_left_ms, left_ms=left_ms)

    def abort(self, request_ids: Iterable[str]) -> None:
        names = [name for name in request_ids if self._shares.owners.get(name) is self]
        for name in names:
            self.forget(name)
        if names:
            self._shares.thread.abort(names)
            self._shares.make_room()

    def refuse(self, request_id: str, why: str) -> None:
        """End a request that cannot even be given to the engine."""
        self._own(request_id, 0)
        self._shares.thread.refuse(request_id, why)

    def load(self) -> EngineLoad:
        """The whole engine's."""
        return self._shares.thread.load()

    def pause(self, *, is_paused: bool) -> None:
        """Hold steps back while what was made cannot be sent."""
        self.is_paused = is_paused
        self._shares.hold_back()

    def stalled_s(self) -> float:
        return self._shares.thread.stalled_s()

    def forget(self, request_id: str) -> None:
        """It ended or was aborted: what it held is room for all."""
        self._shares.owners.pop(request_id, None)
        self.num_seqs -= self._seqs.pop(request_id, 0)

    def close(self) -> None:
        """What it holds was aborted before."""
        self.pause(is_paused=False)
        self._shares.open_ones.remove(self)
        self._shares.make_room()

    def _own(self, request_id: str, num_seqs: int) -> None:
        self.num_seqs += num_seqs - self._seqs.get(request_id, 0)
        self._seqs[request_id] = num_seqs
        self._shares.owners[request_id] = self
