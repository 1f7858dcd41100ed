"""A worker of the simulation: the real consumer, publisher, maintenance and engine thread, one action at a time.

Its engine's token k is k, whatever the attempt; how tokens are cut into frames and the events among them differ
from attempt to attempt, so that two attempts never write the same bytes.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, cast

from shared.config import RedisSettings
from shared.redis_client import AWAY, Client
from shared.request_queue import LeaseLost, RequestQueue
from shared.schemas import ChoiceEndFrame, EndFrame, EventFrame, Frame, Outcome, Prefix, Request, TokensFrame, Usage
from shared.token_stream import TokenStream
from tests.integration.faults import FaultyScripts
from worker.consumer import Consumer
from worker.engine.outputs import EngineLoad, StepOutput
from worker.engine_thread import EngineThread
from worker.holdings import Holdings, Settlement
from worker.maintenance import Maintenance
from worker.publisher import Publisher
from worker.shares import Shares

POISON_SEED = 666
SLOTS = 4


class Poisoned(Exception):
    """A request that kills the process that runs it."""


class StandIn:
    """An engine in the narrow interface; `next_token` by request."""

    card = tokenizer_blob = cast(Any, None)
    resume_exact = True

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._live: dict[str, tuple[Request, int, bool]] = {}

    def add(self, request: Request, prefixes: Sequence[Prefix]) -> None:
        self._live[request.request_id] = (request, len(prefixes[0].token_ids), prefixes[0].finish_reason is not None)

    def abort(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._live.pop(request_id, None)

    def step(self) -> list[StepOutput]:
        if any(request.params.seed == POISON_SEED for request, _, _ in self._live.values()):
            raise Poisoned
        return [self._advance(request_id) for request_id in list(self._live) if self._rng.random() < 0.8]

    def has_work(self) -> bool:
        return bool(self._live)

    def load(self) -> EngineLoad:
        return EngineLoad(len(self._live), 0, max(0, SLOTS - len(self._live)), 100_000, 100, len(self._live))

    def close(self) -> None: ...

    def _advance(self, request_id: str) -> StepOutput:
        request, first, has_choice_end = self._live[request_id]
        frames: list[Frame] = []
        if self._rng.random() < 0.3:
            frames.append(EventFrame("preempted", {"at": self._rng.randrange(10 ** self._rng.randint(1, 6))}))
        total = request.params.max_tokens
        ids = list(range(first, min(total, first + self._rng.randint(1, 3))))
        if ids:
            frames.append(TokensFrame(0, ids, "".join(f"{i} " for i in ids)))
        output = StepOutput(request_id, frames, len(ids))
        self._live[request_id] = (request, first + len(ids), has_choice_end)
        if first + len(ids) == total:
            self._end(output, total, has_choice_end=has_choice_end)
        return output

    def _end(self, output: StepOutput, total: int, *, has_choice_end: bool) -> None:
        if not has_choice_end:
            output.frames.append(ChoiceEndFrame(0, "length"))
        output.frames.append(EndFrame(Outcome.FINISHED, Usage(4, total)))
        output.outcome = Outcome.FINISHED
        del self._live[output.request_id]


class _Loop:
    """Where the engine thread posts: delivered when the simulation says so, as an event loop may be late."""

    def __init__(self) -> None:
        self.posted: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()

    def call_soon_threadsafe(self, call: Callable[..., object], *args: object) -> None:
        self.posted.append((call, args))


class SimulatedWorker:
    """One process. `act` does one of the things its loops would do; two things under way at most: talk and emit."""

    def __init__(self, name: str, scripts: FaultyScripts, settings: RedisSettings, model: str, rng: random.Random):
        self._name = name
        self.scripts = scripts
        self._settings = settings
        self._model = model
        self._rng = rng
        self._num_identities = 0
        self._lanes: dict[str, asyncio.Task[None]] = {}
        self._backend = StandIn(rng)
        self._thread = EngineThread(lambda: self._backend, lambda _seconds, _load: None)
        self._posts = _Loop()
        self._thread._loop = cast(Any, self._posts)
        self._thread._load = self._backend.load()
        self.paused = 0
        self._take_identity()

    def _take_identity(self) -> None:
        self._num_identities += 1
        self.identity = (f"{self._name}.{self._num_identities}", "nonce")
        self.is_registered = False
        s = self._settings
        self.queue = RequestQueue(self.scripts, self._model, s.retention_s, s.lease_ms)
        stream = TokenStream(self.scripts, self._model, s.retention_s, s.lease_ms)
        share = Shares(self._thread).open()
        self.holdings = Holdings(self.queue, share, lambda: None)
        self.publisher = Publisher(stream, share, self.holdings, self.identity, lambda *_: None, lambda *_: None)
        self._consumer = Consumer(self.queue, cast(Client, None), share, self.holdings, self.identity, lambda *_: None)
        self._maintenance = Maintenance(self.queue, share, self.holdings, self._consumer, self.publisher, self.identity)
        share.on_outputs = self.publisher.offer

    @property
    def is_idle(self) -> bool:
        return not self._lanes and not len(self.holdings) and not self.publisher._dirty

    def act(self, what: str = "") -> None:
        """Raises Poisoned. `what`: step, post, emit, take or beat; any of them when it is left open."""
        what = what or self._rng.choice(("step", "step", "post", "post", "emit", "emit", "take", "beat"))
        if what == "step":
            self._step()
        elif what == "post":
            self._deliver_posts()
        elif not self.is_registered:
            self._start("talk", self._register())
        elif what == "emit":
            self._start("emit", self._emit())
        else:
            self._start("talk", self._consumer._take() if what == "take" else self._maintenance._beat(self._settings))

    def release_one(self) -> None:
        """As a drain does."""
        held = list(self.holdings)
        if held:
            one = self._rng.choice(held)
            self._start("release", self.holdings.settle(one.request_id, one.owner, Settlement.RELEASED))

    def kill(self) -> None:
        self.scripts.is_dead = True
        for task in self._lanes.values():
            task.cancel()

    def _step(self) -> None:
        # With nothing to do the thread would wait.
        if self._thread._inbox or (self._backend.has_work() and not self._thread._is_paused):
            self._thread._go_round(self._backend)

    def _deliver_posts(self) -> None:
        if self._posts.posted:
            call, args = self._posts.posted.popleft()
            call(*args)

    async def _register(self) -> None:
        await self.queue.register(*self.identity, b"{}")
        self.is_registered = True

    async def _emit(self) -> None:
        emissions = self.publisher._collect()
        if emissions:
            await self.publisher._emit(emissions)
        if not self.publisher._collect():
            self.publisher._rest()

    def _start_anew(self) -> None:
        for task in self._lanes.values():
            if task is not asyncio.current_task():
                task.cancel()
        self._lanes.clear()
        self.holdings.drop_all()
        self._take_identity()

    def _start(self, lane: str, call: Coroutine[Any, Any, object]) -> None:
        if lane in self._lanes:
            call.close()
            return
        self._lanes[lane] = asyncio.create_task(self._run(lane, call))

    async def _run(self, lane: str, call: Coroutine[Any, Any, object]) -> None:
        identity = self.identity
        try:
            await call
        except AWAY:
            pass
        except LeaseLost:
            if identity == self.identity:
                self._start_anew()
        finally:
            if self._lanes.get(lane) is asyncio.current_task():
                del self._lanes[lane]
