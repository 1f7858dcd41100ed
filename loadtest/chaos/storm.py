"""The storm: from a seed, for a bounded time, faults strike a whole deployment under load; then it must come to rest.

    start, steady -> each kind of fault alone -> faults one after another, overlapping -> heal -> the last answers come
    -> books, blocks, counts

The seed fixes which faults strike whom, in which order, and what clients ask; not what the machine makes of it.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from loadtest.chaos.alone import Alone
from loadtest.chaos.books import come_to_rest
from loadtest.chaos.client import PATIENCE_S, Answer, ask
from loadtest.chaos.fleet import CLOCKS, SIMULATED, Fleet
from loadtest.chaos.injections import WEIGHTS, Injector
from loadtest.chaos.load import Load, Questions
from loadtest.chaos.questions import RecordedQuestions, SimulatedQuestions, unanswered
from loadtest.chaos.report import Injected, Report

_FAULT_S = 30.0
_REST_S = 60.0
_PROGRESS_S = 15.0
_STEADY_S = 3.0
ARMING = "(failpoints armed)"
WORKER_KILLS = (
    "take:kill,probability=0.002,seed={start};after_take:kill,probability=0.02,seed={start},match=Delivery(;"
    "before_emit:kill,probability=0.0005,seed={start};after_emit_before_reply:kill,probability=0.0005,seed={start};"
    "heartbeat:kill,probability=0.003,seed={start}"
)
WORKER_ERRORS = (
    "take:raise,probability=0.01,seed={start};after_take:raise,probability=0.1,seed={start},match=Delivery(;"
    "before_emit:raise,probability=0.003,seed={start};after_emit_before_reply:raise,probability=0.003,seed={start};"
    "heartbeat:raise,probability=0.05,seed={start};release:raise,probability=0.2,seed={start};"
    "kv_alloc:drop,probability=0.05,seed={start}"
)
GATEWAY_FAULTS = (
    "publish_drop:drop,probability=0.003,seed={start};before_admit:raise,probability=0.01,seed={start};"
    "after_admit:raise,probability=0.02,seed={start};after_admit:kill,probability=0.002,seed={start};"
    "repair:raise,probability=0.05,seed={start};forward:delay=50,probability=0.0005,seed={start}"
)


@dataclass(frozen=True, slots=True)
class Plan:
    """One storm. `kinds` maps faults to their share. `is_alone_first`: before its time each kind strikes alone, with
    no failpoint armed."""

    seed: int
    seconds: float
    env: Mapping[str, object]
    model: str
    num_gateways: int = 2
    num_workers: int = 3
    num_clients: int = 40
    interval_s: float = 4.0
    max_tokens: tuple[int, int] = (20, 160)
    kinds: Mapping[str, float] | None = None
    failpoints: Mapping[str, str] | None = None
    is_alone_first: bool = True


def simulated(seed: int, seconds: float, **changes: object) -> Plan:
    failpoints = {"worker1": WORKER_KILLS, "worker2": WORKER_ERRORS, "gateway1": GATEWAY_FAULTS}
    values: dict[str, object] = {"failpoints": failpoints, **changes}
    return Plan(seed, seconds, {**CLOCKS, **SIMULATED}, "simulated", **values)  # type: ignore[arg-type]


def native(seed: int, seconds: float, **changes: object) -> Plan:
    """The packaged model. It takes seconds to load: faults are further apart, streams few and short, and none strikes
    alone unless that is asked for."""
    env = {**CLOCKS, "lease_ms": 6000, "reap_ms": 1500, "heartbeat_ms": 1000, "max_num_seqs": 8, "threads": 1}
    values: dict[str, object] = {
        "num_workers": 2, "num_clients": 4, "interval_s": 15.0, "max_tokens": (8, 32), "is_alone_first": False,
    }  # fmt: skip
    return Plan(seed, seconds, env, "smollm2-135m-instruct", **{**values, **changes})  # type: ignore[arg-type]


class Storm:
    """`run` once."""

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._say = say
        self._alone: list[Injected] = []
        self._injected: list[Injected] = []
        self._remarks: list[str] = []

    async def run(self) -> Report:
        with tempfile.TemporaryDirectory(prefix="headrace-chaos-") as folder:
            env = {**self._plan.env, "log_level": "warning", "retention_s": round(self._plan.seconds) + 900}
            fleet = await asyncio.to_thread(
                Fleet, Path(folder), num_workers=self._plan.num_workers, num_gateways=self._plan.num_gateways,
                env=env, failpoints={} if self._plan.is_alone_first else self._plan.failpoints,
            )  # fmt: skip
            supervisor: asyncio.Task[None] | None = None
            try:
                await asyncio.to_thread(fleet.wait_ready, self._plan.num_workers)
                supervisor = asyncio.create_task(fleet.supervise())
                return await self._under_load(fleet)
            finally:
                if supervisor is not None:
                    supervisor.cancel()
                await asyncio.to_thread(fleet.stop)

    async def _under_load(self, fleet: Fleet) -> Report:
        plan = self._plan
        started = time.monotonic()
        can_resume = await resumes(fleet.base_urls[0])
        questions = await self._questions(fleet)
        load = Load(fleet.client_ports, plan.model, questions, plan.num_clients, plan.seed, can_resume)
        clients = asyncio.create_task(load.run())
        progress = asyncio.create_task(self._tell(load, started))
        await asyncio.sleep(_STEADY_S)
        if plan.is_alone_first:
            await self._each_alone(fleet, load)
        load.all_come.set()
        storm_began = time.monotonic()
        await self._strike(fleet, storm_began + plan.seconds)
        fleet.heal()
        load.stop.set()
        _, late = await asyncio.wait([clients], timeout=PATIENCE_S * 1.5)
        if late:
            self._remarks.append("clients still wait for answers")
            clients.cancel()
        (result,) = await asyncio.gather(clients, return_exceptions=True)
        if isinstance(result, Exception):
            self._remarks.append(f"a client failed, and all of them ended: {result!r}")
        progress.cancel()
        rest = await come_to_rest(fleet, list(load.tally.accepted), _REST_S)
        return Report(
            plan.seed, time.monotonic() - storm_began, self._alone, self._injected, storm_began, load.tally, rest,
            fleet.deaths, fleet.struck(), can_resume, [*self._remarks, *_evidence(load)],
        )  # fmt: skip

    async def _each_alone(self, fleet: Fleet, load: Load) -> None:
        """Then the failpoints of the storm are armed, in processes started anew."""
        injector = Injector(fleet, random.Random(f"{self._plan.seed}:alone"))
        alone = Alone(fleet, load, lambda kind: self._cause(injector, kind))
        await alone.run(self._plan.kinds or WEIGHTS, self._say)
        self._remarks += alone.remarks
        await alone.one(ARMING, self._arm(fleet))
        self._alone = alone.struck

    async def _arm(self, fleet: Fleet) -> str:
        fleet.failpoints |= self._plan.failpoints or {}
        armed = [name for name in fleet.names if name in fleet.failpoints]
        for name in armed:
            fleet.drain(name, is_hurried=False)
        return f"{', '.join(armed)} started anew"

    async def _questions(self, fleet: Fleet) -> Questions:
        rng = random.Random(f"{self._plan.seed}:questions")
        if self._plan.env.get("backend") == "simulated":
            return SimulatedQuestions(rng, self._plan.max_tokens)
        answers = [Answer(question) for question in unanswered(rng, 8, self._plan.max_tokens)]
        await asyncio.gather(*(ask(fleet.ports[0], self._plan.model, answer) for answer in answers))
        return RecordedQuestions(rng, [answer.as_expected() for answer in answers])

    async def _strike(self, fleet: Fleet, until: float) -> None:
        """Faults until then; returns when all are over."""
        rng = random.Random(f"{self._plan.seed}:faults")
        injector = Injector(fleet, rng)
        running: set[asyncio.Task[None]] = set()
        bag: list[str] = []
        while time.monotonic() < until:
            bag = bag or _bag(self._plan.kinds or WEIGHTS, rng)
            running.add(asyncio.create_task(self._one(injector, bag.pop())))
            await asyncio.sleep(self._plan.interval_s * rng.uniform(0.5, 1.5))
        await asyncio.wait(running, timeout=_FAULT_S)

    async def _one(self, injector: Injector, kind: str) -> None:
        began = time.monotonic()
        what = await self._cause(injector, kind)
        if what:
            self._injected.append(Injected(kind, what, began, time.monotonic()))

    async def _cause(self, injector: Injector, kind: str) -> str:
        """What was hit; '' if that failed, which is remarked."""
        try:
            async with asyncio.timeout(_FAULT_S):
                return await injector.inject(kind)
        except Exception as error:
            self._remarks.append(f"the fault {kind} could not be caused: {error!r}")
            return ""

    async def _tell(self, load: Load, started: float) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_S)
            tally = load.tally
            self._say(
                f"{time.monotonic() - started:6.0f} s  {len(self._injected)} faults, {tally.ends.total()} requests,"
                f" {tally.num_tokens} tokens, {len(tally.damaged)} damaged; "
                + ", ".join(f"{end} {number}" for end, number in tally.ends.most_common())
            )


async def resumes(base_url: str) -> bool:
    """Whether this gateway has the route on which a stream is continued."""
    async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
        paths = (await client.get(f"{base_url}/openapi.json")).json().get("paths", {})
    return any(path.startswith("/v1/requests/") and path.endswith("/events") for path in paths)


def _bag(shares: Mapping[str, float], rng: random.Random) -> list[str]:
    """Every kind as often as its share says, shuffled: after one bag each has struck."""
    bag = [kind for kind, share in shares.items() for _ in range(max(1, round(share)))]
    rng.shuffle(bag)
    return bag


def _evidence(load: Load) -> list[str]:
    """The first damaged answers, as they must be and as they came."""
    return [
        f"request {answer.request_id} ended {answer.end}, resumed {answer.num_resumes}:"
        f" wanted {answer.question.expected!r}, got {answer.texts!r}"
        for answer in load.tally.damaged[:3]
    ]
