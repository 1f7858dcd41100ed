"""One model on this worker: published, registered, served, drained, unregistered.

    publish model -> register -> (consume, publish, maintain) -> drain -> unregister

Whose lease was lost drops everything and registers under a new id, in the same process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable

import msgspec

from shared.redis_client import AWAY, end_tasks
from shared.registry import Registry
from shared.request_queue import LeaseLost, RequestQueue
from shared.schemas import KNOWN_FIELDS, WIRE_VERSION, ModelCard, WorkerInfo
from shared.token_stream import TokenStream
from worker.condition.phase import Phase
from worker.consumer import Consumer
from worker.holdings import Holdings
from worker.maintenance import Maintenance
from worker.publisher import Publisher
from worker.serving.failing import Failing
from worker.serving.host import Host, first_of, until_answered
from worker.serving.leaving import Leaving

log = logging.getLogger(__name__)


async def _nothing() -> None: ...


class ServedModel:
    """`run` once. One identity at a time."""

    def __init__(self, host: Host, card: ModelCard, blob: bytes) -> None:
        s = host.settings
        # How the model writes calls and reasoning is a setting, and no gateway's.
        self.card = msgspec.structs.replace(card, tool_format=s.tool_format, reasoning_format=s.reasoning_format)
        self._host = host
        self._blob = blob
        self._registry = Registry(host.scripts)
        self._draining = asyncio.Event()
        self._drain_now = asyncio.Event()
        self.is_registered = asyncio.Event()
        self.worker_id, self._nonce = "", ""
        self.after_registering: Callable[[], Awaitable[None]] = _nothing

    def drain(self, *, is_now: bool = False) -> None:
        """Take nothing more and finish; `is_now`: give everything back now."""
        self._draining.set()
        if is_now:
            self._drain_now.set()

    async def run(self) -> None:
        """Until drained. Raises what breaks the engine, and StoppedWaiting."""
        await until_answered(lambda: self._registry.publish_model(self.card, self._blob), self._draining)
        while not self._draining.is_set():
            if self._host.quarantine.begun.is_set():
                await self._sit_out()
            else:
                with contextlib.suppress(LeaseLost):
                    await self._serve()

    async def _sit_out(self) -> None:
        """Without a registration, which would count as a live worker; who looks is told."""
        s, quarantine, worker_id = self._host.settings, self._host.quarantine, f"w-{secrets.token_hex(4)}"
        queue = RequestQueue(self._host.scripts, self.card.revision, s.retention_s, s.lease_ms)
        said = msgspec.json.encode({"info": self._info(worker_id), "why": quarantine.why})
        ends = [asyncio.create_task(event.wait()) for event in (quarantine.over, self._draining)]
        stopped = self._host.shares.thread.stopped
        try:
            while not any(end.done() for end in ends):
                with contextlib.suppress(*AWAY):
                    await queue.quarantine(worker_id, said, keep_ms=3 * s.lease_ms)
                waited = (*ends, stopped)
                await asyncio.wait(waited, timeout=s.lease_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
                if stopped.done():
                    stopped.result()
        finally:
            await end_tasks(*ends)
            with contextlib.suppress(*AWAY):
                await queue.quarantine(worker_id, b"", keep_ms=0)

    async def _serve(self) -> None:
        """One registration, until it is drained. Raises LeaseLost."""
        host, s = self._host, self._host.settings
        identity = (f"w-{secrets.token_hex(4)}", secrets.token_hex(8))
        queue = RequestQueue(host.scripts, self.card.revision, s.retention_s, s.lease_ms)
        stream = TokenStream(host.scripts, self.card.revision, s.retention_s, s.lease_ms)
        share, stopped = host.shares.open(), host.shares.thread.stopped
        holdings = Holdings(queue, share, host.shares.make_room, s.max_crashes)
        failing = Failing(holdings, host.quarantine)
        publisher = Publisher(stream, share, holdings, identity, host.telemetry.on_emit, host.on_order)
        consumer = Consumer(queue, host.bell, share, holdings, identity, host.telemetry.on_delivery)
        maintenance = Maintenance(queue, share, holdings, consumer, publisher, identity)
        maintenance.more_figures = host.telemetry.gpu_figures
        leaving = Leaving(queue, share, holdings, publisher, self._drain_now)
        share.on_outputs = lambda outputs: publisher.offer(failing.sift(outputs))
        share.on_room = consumer.make_room
        consumer.is_for_others = self._is_for_others
        info = msgspec.json.encode(self._info(identity[0]))
        tasks: list[asyncio.Task[None]] = []
        leaves = asyncio.create_task(self._until_leaving())
        try:
            await until_answered(lambda: queue.register(*identity, info), self._draining)
            self.worker_id, self._nonce = identity
            self.is_registered.set()
            host.standing.enter(Phase.PULLING)
            await self.after_registering()
            log.info("worker_ready", extra={"worker": identity[0], "model": self.card.revision})
            running = (consumer.run(), publisher.run(), maintenance.run(s, self._republish), failing.run())
            tasks += [asyncio.create_task(coroutine) for coroutine in running]
            await first_of(leaves, *tasks, stopped)
            consumer.quiet()
            finish_s = s.drain_timeout_s if self._draining.is_set() else 0.0
            await leaving.finish_or_give_back(finish_s, *tasks[1:], stopped)
            await leaving.unregister(identity, s.lease_ms)
        except LeaseLost:
            log.warning("lease_lost", extra={"worker": identity[0], "num_held": len(holdings)})
            if maintenance.was_stalled:
                host.quarantine.note("stall", identity[0])
            raise
        finally:
            await end_tasks(leaves, *tasks)
            holdings.drop_all()
            # The publisher that held the engine back is gone, and what it could not send with it.
            share.close()

    async def _until_leaving(self) -> None:
        """Told to, or kept failing."""
        events = [asyncio.create_task(event.wait()) for event in (self._draining, self._host.quarantine.begun)]
        try:
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks(*events)

    async def tell_adapters(self, adapters: bytes) -> None:
        """Beside this registration. Raises LeaseLost, and what AWAY names."""
        s = self._host.settings
        queue = RequestQueue(self._host.scripts, self.card.revision, s.retention_s, s.lease_ms)
        await queue.tell_adapters(self.worker_id, self._nonce, adapters)

    async def _republish(self) -> None:
        if not await self._registry.is_published(self.card):
            await self._registry.publish_model(self.card, self._blob)
            log.info("model_published", extra={"model": self.card.revision})

    async def _is_for_others(self) -> bool:
        """Whether a worker lives that reads bodies this one does not; while nobody can say, there may be one."""
        try:
            rows = await self._registry.workers(self.card.revision)
        except AWAY:
            return True
        others = [row.info for row in rows if row.state == "live" and row.info]
        return any((info.version, info.knows) > (WIRE_VERSION, KNOWN_FIELDS) for info in others)

    def _info(self, worker_id: str) -> WorkerInfo:
        s = self._host.settings
        return WorkerInfo(
            worker_id=worker_id,
            model=self.card.revision,
            backend=s.backend,
            host=socket.gethostname(),
            pid=os.getpid(),
            max_num_seqs=s.max_num_seqs,
            kv_blocks=self._host.shares.thread.load().kv_blocks_total,
            knows=KNOWN_FIELDS,
        )
