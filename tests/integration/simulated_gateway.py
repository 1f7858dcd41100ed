"""A gateway of the simulation: the real dispatcher, fanout and subscriptions, and clients that check what they get.

Messages are read when the simulation says so, and may be dropped or stay unread for long.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from dataclasses import dataclass
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from gateway.dispatch import Dispatcher
from gateway.fanout import Fanout
from gateway.http.options import AdmissionOptions
from gateway.models.catalogue import Catalogue
from gateway.subscription import Subscription
from shared import keys
from shared.config import GatewaySettings
from shared.errors import StreamContradiction, Unavailable
from shared.observability import GatewayMetrics
from shared.redis_client import AWAY, connect
from shared.request_queue import RequestQueue, Ticket
from shared.schemas import EndFrame, Request, TokensFrame, decode_frames, encode_request
from tests.integration.faults import FaultyScripts


class SteppedFanout(Fanout):
    """Without the tasks that listen and watch: the simulation calls what they would call."""

    async def subscribe(self, model: str) -> None: ...

    def _watch_for_deafness(self, deaf_to: list[str]) -> None: ...


class SimulatedGateway:
    def __init__(
        self, name: str, scripts: FaultyScripts, settings: GatewaySettings, model: str, rng: random.Random
    ) -> None:
        self.name = name
        self.scripts = scripts
        self._model = model
        self._rng = rng
        metrics = GatewayMetrics(CollectorRegistry())
        self.fanout = SteppedFanout(settings, scripts, name, metrics)
        catalogue = Catalogue(settings, scripts, metrics)
        self.dispatcher = Dispatcher(settings, scripts, name, self.fanout, catalogue, metrics)
        self.queue = RequestQueue(scripts, model, settings.retention_s, settings.lease_ms)
        self._client: Any = connect(settings)
        self._pubsub: Any = None
        self._unread: deque[bytes] = deque()
        self._checking: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        return not (self.fanout._held or self.fanout._tasks or self.dispatcher._attendance._tasks)

    async def open(self) -> None:
        await self._subscribe()

    async def close(self) -> None:
        await self._pubsub.aclose()
        await self._client.aclose()

    async def kill(self) -> None:
        self.scripts.is_dead = True
        attendance = self.dispatcher._attendance
        tasks = (*self.fanout._tasks, *attendance._tasks, *attendance._witnesses)
        for task in (*tasks, *([self._checking] if self._checking else [])):
            task.cancel()
        await self.close()

    async def listen(self, *, dropped: float = 0.0, late: bool = False) -> None:
        """Read what was published so far, and deliver it or, `late`, a part of it."""
        try:
            await self._read(dropped)
        except (*AWAY, ValueError):
            await self._pubsub.aclose()
            await self._subscribe()
            for subscription in self.fanout._held.values():
                self.fanout._start_repair(subscription, "reconnect")
        num_delivered = self._rng.randint(0, len(self._unread)) if late else len(self._unread)
        for _ in range(num_delivered):
            self.fanout._deliver(self._unread.popleft())

    def check(self, *, waiting_too: bool) -> None:
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check(waiting_too))

    async def _check(self, waiting_too: bool) -> None:
        with contextlib.suppress(*AWAY):
            await self.fanout._check(waiting_too=waiting_too)

    async def _subscribe(self) -> None:
        self._pubsub = self._client.pubsub()
        await self._pubsub.subscribe(keys.channel(self._model, self.name))

    async def _read(self, dropped: float) -> None:
        """Up to the answer to a ping: all that was published before."""
        await self._pubsub.ping()
        while True:
            message = await self._pubsub.get_message(timeout=5)
            if message is not None and message["type"] == "pong":
                return
            if message is not None and message["type"] == "message" and self._rng.random() >= dropped:
                self._unread.append(message["data"])


@dataclass(eq=False)
class Client:
    """Follows one request, and resumes it with what it saw. Checks each delivery."""

    request: Request
    options: AdmissionOptions
    seen: bytes = b""
    outcome: str = ""
    has_contradiction: bool = False
    is_gone: bool = False
    gateway: SimulatedGateway | None = None
    task: asyncio.Task[None] | None = None
    is_resuming: bool = False
    was_resumed: bool = False

    @property
    def is_done(self) -> bool:
        return bool(self.outcome) or self.has_contradiction or self.is_gone

    def submit(self, gateway: SimulatedGateway) -> None:
        self.gateway = gateway
        self.task = asyncio.create_task(self._submit(gateway))

    def resume(self, gateway: SimulatedGateway) -> None:
        self.gateway = gateway
        self.is_resuming = self.was_resumed = True
        self.task = asyncio.create_task(self._resume(gateway))

    def leave(self) -> None:
        self.is_gone = True
        self.is_resuming = False
        if self.task is not None:
            self.task.cancel()

    async def _submit(self, gateway: SimulatedGateway) -> None:
        try:
            await gateway.dispatcher.submit(self.request, self.options)
        except Unavailable:
            # The server went while a detached request was made durable: refused, and whether it runs is nobody's.
            assert self.options.detached
            self.is_gone = True
            return
        await self._follow(gateway)

    async def _resume(self, gateway: SimulatedGateway) -> None:
        ticket = Ticket(
            self.request.request_id, self.request.service_class.value, self.request.tenant,
            len(self.request.prompt_ids), self.request.params.max_tokens, 1,
        )  # fmt: skip
        s = Subscription(self.request.model, ticket, encode_request(self.request), bytearray(self.seen))
        s.is_running = s.is_admitted = True
        gateway.fanout.add(s)
        try:
            await self._attach(gateway)
        except asyncio.CancelledError:
            gateway.dispatcher._attendance.leave(s)
            raise
        gateway.fanout._start_repair(s, "resume")
        await self._follow(gateway)

    async def _attach(self, gateway: SimulatedGateway) -> None:
        while self.is_resuming:
            try:
                await gateway.queue.attach(self.request.request_id, gateway.name)
                self.is_resuming = False
            except AWAY:
                await asyncio.sleep(0)

    async def _follow(self, gateway: SimulatedGateway) -> None:
        subscription = gateway.fanout.get(self.request.request_id)
        assert subscription is not None
        try:
            async with gateway.dispatcher.follow(self.request.request_id) as batches:
                async for _ in batches:
                    self._look(bytes(subscription.journal))
        except StreamContradiction:
            self.has_contradiction = True

    def _look(self, journal: bytes) -> None:
        """Bytes are only added, frames are whole, ids are 0, 1, 2..., and one end frame comes last."""
        assert journal.startswith(self.seen), f"{self.request.request_id}: what was seen has changed"
        self.seen = journal
        frames = decode_frames(journal)
        ids = [i for frame in frames if isinstance(frame, TokensFrame) for i in frame.token_ids]
        assert ids == list(range(len(ids))), f"{self.request.request_id}: tokens {ids}\n{journal.decode()}"
        ends = [frame for frame in frames if isinstance(frame, EndFrame)]
        assert not ends or (len(ends) == 1 and frames[-1] is ends[0]), f"{self.request.request_id}: {journal.decode()}"
        if ends:
            self.outcome = ends[0].outcome.value
            is_whole = len(ids) == self.request.params.max_tokens
            assert is_whole or self.outcome != "finished", f"{self.request.request_id}: {journal.decode()}"


def twin(client: Client) -> Client:
    """Another client of the same request, that saw nothing yet."""
    return Client(msgspec.structs.replace(client.request), client.options)
