"""One drill: steady state, inject, assert, heal, assert. Each is a file of `drills/`, a row of protocol.md's failures.

Streams are started and must flow; the faults strike; every stream must end as the file says and be right to the byte;
then the same load once more must run as if nothing had been, and all books must be at rest.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from pathlib import Path

import msgspec

from loadtest.chaos.books import Rest, come_to_rest
from loadtest.chaos.client import Answer, ask, resume
from loadtest.chaos.fleet import CLOCKS, SIMULATED, Fleet
from loadtest.chaos.injections import Injector
from loadtest.chaos.load import come_back
from loadtest.chaos.questions import SimulatedQuestions
from loadtest.chaos.storm import resumes

DRILLS = Path(__file__).with_name("drills")
_STEADY_S = 60.0
_ENDS_S = 100.0
_REST_S = 30.0


class Strike(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`fault` is one of injections.WEIGHTS; `on` names a process, else the seed draws one."""

    fault: str
    on: str = ""


class Drill(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`ends` are how a stream may end, at least one as the first says. `held` processes are down from before the load
    until the streams have ended, and so is the model `paused`; `leavers` leave once they have text; `joiners` follow a
    stream on another gateway. `waiting` more streams begin in the fault, a model_pause, and must wait until it is over.
    `poison` is how the requests with the most tokens must end, and no other may. `rearm`: what is started again has
    its failpoints again.
    """

    failure: str
    promise: str
    workers: int = 2
    gateways: int = 2
    streams: int = 8
    max_tokens: tuple[int, int] = (60, 100)
    headers: dict[str, str] = {}
    failpoints: dict[str, str] = {}
    strikes: list[Strike] = []
    held: list[str] = []
    paused: bool = False
    waiting: int = 0
    leavers: int = 0
    joiners: bool = False
    poison: str = ""
    rearm: bool = False
    can_flow: bool = True
    ends: tuple[str, ...] = ("finished",)


class Outcome(msgspec.Struct):
    """`faults` in words; `broken` are the promises that were not kept."""

    name: str
    drill: Drill
    seconds: float
    longest_pause_s: float
    ends: list[str]
    faults: list[str]
    rest: Rest
    broken: list[str]


def names() -> list[str]:
    return sorted(path.stem for path in DRILLS.glob("*.toml"))


def read(name: str) -> Drill:
    return msgspec.toml.decode((DRILLS / f"{name}.toml").read_bytes(), type=Drill)


class Run:
    """A drill under way, on a fleet of its own."""

    def __init__(self, name: str, seed: int) -> None:
        self._name = name
        self._drill = read(name)
        self._rng = random.Random(f"{seed}:{name}")
        self._questions = SimulatedQuestions(self._rng, self._drill.max_tokens)
        self._broken: list[str] = []
        self._faults: list[str] = []
        self._answers: list[Answer] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> Outcome:
        drill = self._drill
        env: dict[str, object] = {**CLOCKS, **SIMULATED, "log_level": "warning"}
        with tempfile.TemporaryDirectory(prefix="headrace-drill-") as folder:
            fleet = await asyncio.to_thread(
                Fleet, Path(folder), num_workers=drill.workers, num_gateways=drill.gateways, env=env,
                failpoints=drill.failpoints,
            )  # fmt: skip
            try:
                await asyncio.to_thread(fleet.wait_ready, drill.workers)
                return await self._on(fleet)
            finally:
                await asyncio.to_thread(fleet.stop)

    async def _on(self, fleet: Fleet) -> Outcome:
        started = time.monotonic()
        if not self._drill.rearm:
            fleet.failpoints.clear()
        for name in self._drill.held:
            fleet.hold(name)
            fleet.kill(name)
        if self._drill.paused:
            async with fleet.desk() as desk:
                await desk.pause("", by="drill", why=self._drill.failure)
        supervisor = asyncio.create_task(fleet.supervise())
        self._can_resume = await resumes(fleet.base_urls[0])
        await self._steady(fleet)
        await self._strike(fleet)
        await self._until_ended(self._tasks)
        self._judge(self._answers)
        fleet.heal()
        async with fleet.desk() as desk:
            await desk.resume("", by="drill")
        again = await self._once_more(fleet)
        accepted = [answer.request_id for answer in (*self._answers, *again) if answer.is_accepted]
        rest = await come_to_rest(fleet, accepted, _REST_S)
        supervisor.cancel()
        self._judge_rest(fleet, rest, len(accepted))
        pauses = [ended - began for answer in self._answers for began, ended in answer.pauses]
        return Outcome(
            self._name, self._drill, time.monotonic() - started, max(pauses, default=0.0),
            [answer.end for answer in self._answers], [*self._faults, *fleet.struck()], rest, self._broken,
        )  # fmt: skip

    def _begin(self, fleet: Fleet, num_streams: int) -> list[Answer]:
        """So many streams more."""
        answers = [Answer(self._questions.draw()) for _ in range(num_streams)]
        for answer in answers:
            self._tasks.append(asyncio.create_task(self._follow(fleet, len(self._tasks), answer)))
        self._answers += answers
        return answers

    async def _steady(self, fleet: Fleet) -> None:
        """All streams flow, or have begun to wait where nothing can flow."""
        answers = self._begin(fleet, self._drill.streams)
        if self._drill.can_flow:
            flowing = [asyncio.create_task(answer.has_text.wait()) for answer in answers]
            _, late = await asyncio.wait(flowing, timeout=_STEADY_S)
            for task in late:
                task.cancel()
            if late:
                self._broken.append(f"steady state: {len(late)} streams have no text after {_STEADY_S:.0f} s")

    async def _follow(self, fleet: Fleet, number: int, answer: Answer) -> None:
        port = number % len(fleet.client_ports)
        headers = dict(self._drill.headers)
        if self._can_resume and not self._drill.leavers and not self._drill.joiners:
            headers.setdefault("x-headrace-detach", "true")
        asking = asyncio.create_task(ask(fleet.client_ports[port], "simulated", answer, headers))
        if number < self._drill.leavers:
            await answer.has_text.wait()
            if self._drill.joiners:
                await self._join_and_leave(fleet, answer, asking, (port + 1) % len(fleet.client_ports))
            else:
                asking.cancel()
                answer.end = "left"
            return
        await asking
        if self._can_resume:
            await come_back(answer, fleet.client_ports, self._rng)

    async def _join_and_leave(self, fleet: Fleet, answer: Answer, asking: asyncio.Task[None], port: int) -> None:
        """A second client follows from the first event on, on another gateway; then the first one leaves."""
        second = Answer(answer.question, request_id=answer.request_id)
        joined = asyncio.create_task(resume(fleet.client_ports[port], second))
        await second.has_text.wait()
        asking.cancel()
        await joined
        answer.end, answer.texts = second.end, second.texts

    async def _strike(self, fleet: Fleet) -> None:
        injector = Injector(fleet, self._rng)
        for strike in self._drill.strikes:
            striking = asyncio.create_task(injector.inject(strike.fault, strike.on))
            if self._drill.waiting:
                await injector.in_effect.wait()
            waiting = self._begin(fleet, self._drill.waiting)
            self._faults.append(f"{strike.fault} ({await striking})")
            early = [answer for answer in waiting if 0 < answer.first_text_at < injector.over_at]
            if early:
                self._broken.append(f"{len(early)} streams did not wait for the end of {strike.fault}")

    async def _until_ended(self, tasks: list[asyncio.Task[None]]) -> None:
        _, late = await asyncio.wait(tasks, timeout=_ENDS_S)
        for task in late:
            task.cancel()
        if late:
            self._broken.append(f"{len(late)} streams did not end in {_ENDS_S:.0f} s")
        results = await asyncio.gather(*tasks, return_exceptions=True)
        self._broken += [repr(error) for error in results if isinstance(error, Exception)]

    def _judge(self, answers: list[Answer]) -> None:
        allowed = self._drill.ends
        for answer in answers:
            damage = answer.damage()
            if damage:
                self._broken.append(f"{answer.request_id}: {damage}")
            is_poison = self._drill.poison and answer.question.max_tokens == self._drill.max_tokens[1]
            if answer.end not in ((self._drill.poison,) if is_poison else allowed):
                self._broken.append(f"{answer.request_id or 'a request'} ended {answer.end or 'not at all'}")
        if all(answer.end != allowed[0] for answer in answers):
            self._broken.append(f"no stream ended {allowed[0]}")

    async def _once_more(self, fleet: Fleet) -> list[Answer]:
        """Healed: as if nothing had been."""
        fleet.failpoints.clear()
        again = [Answer(self._questions.draw()) for _ in range(self._drill.streams)]
        ports = fleet.client_ports
        await asyncio.gather(*(self._ask_until_taken(ports[i % len(ports)], again[i]) for i in range(len(again))))
        ends = [answer.end for answer in again if answer.end != "finished" or answer.damage()]
        if ends:
            self._broken.append(f"after healing: {ends}")
        return again

    async def _ask_until_taken(self, port: int, answer: Answer) -> None:
        """What was killed last may still be starting."""
        give_up = time.monotonic() + _REST_S
        await ask(port, "simulated", answer)
        while answer.end in ("refused", "unanswered") and time.monotonic() < give_up:
            await asyncio.sleep(0.2)
            await ask(port, "simulated", answer)

    def _judge_rest(self, fleet: Fleet, rest: Rest, num_accepted: int) -> None:
        self._broken += rest.problems
        self._broken += [f"{d.name} died by itself: {d.last_line}" for d in fleet.deaths if not d.failpoint]
        if not rest.is_clean:
            self._broken.append(f"not at rest: {rest.words()}")
        has_loss = any(strike.fault == "redis_power_loss" for strike in self._drill.strikes)
        if rest.num_settled() + (len(rest.gone) if has_loss else 0) != num_accepted:
            self._broken.append(f"accepted {num_accepted}, settled {rest.num_settled()}")
        if self._drill.failpoints and not fleet.struck():
            self._broken.append("no failpoint struck")
