"""One engine, several shares: who is offered what, and who hears of what was made."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from shared.schemas import Outcome, Request, SamplingParams
from worker.engine.outputs import EngineLoad, StepOutput
from worker.engine_thread import EngineThread
from worker.shares import Offer, Share, Shares

SLOTS = 8
NUMBERS = itertools.count()


@dataclass
class FakeThread:
    """Eight slots; whoever was added holds one until it ends."""

    live: set[str] = field(default_factory=set)
    is_paused: bool = False
    on_outputs: Any = None

    def load(self) -> EngineLoad:
        return EngineLoad(len(self.live), 0, SLOTS - len(self.live), 1000, 100, 0)

    def add(self, request: Request, *_: Any, **__: Any) -> None:
        self.live.add(request.request_id)

    def abort(self, names: list[str]) -> None:
        self.live -= set(names)

    def pause(self, *, is_paused: bool) -> None:
        self.is_paused = is_paused

    def end(self, name: str) -> None:
        self.live.discard(name)
        self.on_outputs([StepOutput(name, outcome=Outcome.FINISHED)])


@pytest.fixture
def thread() -> FakeThread:
    return FakeThread()


@pytest.fixture
def shares(thread: FakeThread) -> Shares:
    return Shares(cast(EngineThread, thread))


def add(share: Share, name: str) -> None:
    share.add(Request(request_id=name, model="m", prompt_ids=(1,), params=SamplingParams(max_tokens=1, seed=1)), [])


def take(share: Share, kind: str, num_waiting: int) -> Offer:
    """As a consumer does whose queue has more than anybody can take."""
    with share.taking() as offer:
        for _ in range(min(offer.slots, num_waiting)):
            add(share, f"{kind}{next(NUMBERS)}")
    share.note(offer, num_waiting - offer.slots)
    return offer


def test_one_that_is_alone_is_offered_everything(shares: Shares) -> None:
    assert take(shares.open(), "a", 3).slots == SLOTS


def test_what_one_is_about_to_take_no_other_is_offered(shares: Shares) -> None:
    first, second = shares.open(), shares.open()
    with first.taking():
        assert shares.offer_to(second).slots == 0
    assert shares.offer_to(second).slots == SLOTS


def test_room_goes_to_who_has_less_until_both_have_the_same(shares: Shares, thread: FakeThread) -> None:
    """The first filled the engine with long answers. Each that ends makes room for the second, up to half."""
    first, second = shares.open(), shares.open()
    take(first, "a", 100)
    take(second, "b", 100)
    for name in sorted(thread.live):
        thread.end(name)
        take(first, "a", 100)
        take(second, "b", 100)
    assert (first.num_seqs, second.num_seqs) == (SLOTS // 2, SLOTS // 2)


def test_who_wants_no_more_leaves_all_to_the_others(shares: Shares, thread: FakeThread) -> None:
    first, second = shares.open(), shares.open()
    take(first, "a", 100)
    take(second, "b", 1)  # nothing is free
    thread.end(min(thread.live))
    assert take(first, "a", 100).slots == 0
    take(second, "b", 1)
    thread.end(min(thread.live))
    assert take(first, "a", 100).slots == 1


def test_everybody_hears_when_one_wants_no_more(shares: Shares) -> None:
    first, second = shares.open(), shares.open()
    heard = asyncio.Event()
    first.on_room = heard.set
    second.note(Offer(0, 0), 1)
    second.note(Offer(4, 100), 0)
    assert heard.is_set()


def test_an_output_goes_to_who_added_its_request(shares: Shares, thread: FakeThread) -> None:
    first, second = shares.open(), shares.open()
    heard: list[str] = []
    first.on_outputs = lambda outputs: heard.extend("first " + output.request_id for output in outputs)
    second.on_outputs = lambda outputs: heard.extend("second " + output.request_id for output in outputs)
    add(first, "r1")
    add(second, "r2")
    thread.on_outputs([StepOutput("r2"), StepOutput("r1"), StepOutput("nobody's")])
    assert sorted(heard) == ["first r1", "second r2"]


def test_a_share_cannot_abort_what_is_anothers(shares: Shares, thread: FakeThread) -> None:
    first, second = shares.open(), shares.open()
    add(first, "r1")
    second.abort(["r1"])
    assert thread.live == {"r1"}


def test_the_engine_rests_while_any_share_cannot_send(shares: Shares, thread: FakeThread) -> None:
    first, second = shares.open(), shares.open()
    first.pause(is_paused=True)
    second.pause(is_paused=False)
    assert thread.is_paused
    first.close()
    assert not thread.is_paused
