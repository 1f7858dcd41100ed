"""Clients under a storm: a closed loop each, that asks, now and then leaves, resumes where a gateway died, and judges
every answer against what it had to be.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from loadtest.chaos.client import Answer, ask, resume
from loadtest.chaos.questions import Question
from loadtest.chaos.verdict import Damage

_COME_BACK_S = 0.3
_TRY_AGAIN_S = 1.0
_COMES_BACK_FOR_S = 45.0
_USUAL = ("finished", "left", "refused", "unanswered")
_NOT_NOW = ("broken", "error:server_is_overloaded")
_LEAVES = 0.05
_PLAIN = 0.1


class Questions(Protocol):
    def draw(self) -> Question: ...


@dataclass(frozen=True, slots=True)
class Stumble:
    """A pause a client saw, or (`is_broken`) the end of its stream before its time."""

    began: float
    ended: float
    request_id: str
    is_broken: bool = False


@dataclass(slots=True)
class Tally:
    """All answers so far. `accepted` maps a request to how its client saw it end; `odd` tells of unusual ends."""

    accepted: dict[str, str] = field(default_factory=dict[str, str])
    ends: Counter[str] = field(default_factory=Counter[str])
    num_tokens: int = 0
    num_resumed: int = 0
    damage: Damage = field(default_factory=Damage)
    damaged: list[Answer] = field(default_factory=list[Answer])
    stumbles: list[Stumble] = field(default_factory=list[Stumble])
    odd: list[str] = field(default_factory=list[str])

    def add(self, answer: Answer) -> None:
        self.ends[answer.end] += 1
        self.num_tokens += answer.num_tokens()
        self.num_resumed += answer.num_resumes > 0
        damage = answer.damage()
        if damage:
            self.damage += damage
            self.damaged.append(answer)
        if answer.is_accepted:
            self.accepted[answer.request_id] = answer.end
        if answer.end not in _USUAL:
            self.odd.append(
                f"{answer.request_id or 'a request'} ended {answer.end} after {answer.num_events} events,"
                f" {answer.num_resumes} resumes, {'streamed' if answer.is_streamed else 'in one piece'}"
            )
        self.stumbles += [Stumble(began, ended, answer.request_id) for began, ended in answer.pauses]
        if answer.end == "broken":
            self.stumbles.append(Stumble(answer.last_event_at, time.monotonic(), answer.request_id, is_broken=True))


async def come_back(answer: Answer, ports: Sequence[int], rng: random.Random) -> None:
    """A stream that broke goes on at any gateway, as often as it must; an answer in one piece has no way back."""
    give_up = time.monotonic() + _COMES_BACK_FOR_S
    while answer.end in _NOT_NOW and answer.is_streamed and time.monotonic() < give_up:
        await asyncio.sleep(_COME_BACK_S)
        await resume(rng.choice(ports), answer)


@dataclass(slots=True)
class Load:
    """`num_clients` at once, until `stop` is set. `can_resume`: the gateways know how to go on with a stream.

    `now` maps a client to what it asked last. Half of the clients come when `all_come` is set: until then there is
    room enough that nobody waits for it, also with a worker gone.
    """

    ports: Sequence[int]
    model: str
    questions: Questions
    num_clients: int
    seed: int
    can_resume: bool
    tally: Tally = field(default_factory=Tally)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    all_come: asyncio.Event = field(default_factory=asyncio.Event)
    now: dict[int, Answer] = field(default_factory=dict[int, Answer])

    async def run(self) -> None:
        """Returns when the last client has its answer."""
        async with asyncio.TaskGroup() as group:
            for number in range(self.num_clients):
                group.create_task(self._client(number, random.Random(f"{self.seed}:client{number}")))

    def is_flowing(self) -> bool:
        """Every client is served."""
        return all(answer.is_flowing() for answer in self.now.values())

    async def _client(self, number: int, rng: random.Random) -> None:
        if number >= self.num_clients // 2:
            await self.all_come.wait()
        while not self.stop.is_set():
            answer = Answer(self.questions.draw(), is_streamed=rng.random() >= _PLAIN)
            answer.gateway = rng.randrange(len(self.ports))
            self.now[number] = answer
            if answer.is_streamed and rng.random() < _LEAVES:
                await self._ask_and_leave(answer, rng.randint(0, 30))
            else:
                await self._ask(answer)
                if self.can_resume:
                    await come_back(answer, self.ports, rng)
            self.tally.add(answer)
            if answer.end in ("refused", "unanswered"):
                await self._pause()

    async def _ask(self, answer: Answer) -> None:
        headers = {"x-headrace-detach": "true"} if self.can_resume and answer.is_streamed else {}
        await ask(self.ports[answer.gateway], self.model, answer, headers)

    async def _ask_and_leave(self, answer: Answer, num_events: int) -> None:
        asking = asyncio.create_task(ask(self.ports[answer.gateway], self.model, answer))
        while not asking.done() and answer.num_events < num_events:
            await asyncio.wait([asking], timeout=0.05)
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        # One whose gateway died first would have left anyway: it does not come back.
        answer.end = "left" if answer.end in ("", "broken") else answer.end

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.stop.wait(), _TRY_AGAIN_S)
