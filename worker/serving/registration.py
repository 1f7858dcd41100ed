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

import msgspec

from shared.redis_client import AWAY, end_tasks
from shared.registry import Registry
from shared.request_queue import LeaseLost, RequestQueue
from shared.schemas import KNOWN_FIELDS, WIRE_VERSION, ModelCard, WorkerInfo
from shared.token_stream import TokenStream
from worker.consumer import Consumer
from worker.holdings import Holdings
from worker.maintenance import Maintenance
from worker.publisher import Publisher
from worker.serving.host import Host, first_of, until_answered
from worker.serving.leaving import Leaving

log = logging.getLogger(__name__)


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

    def drain(self, *, is_now: bool = False) -> None:
        """Take nothing more and finish; `is_now`: give everything back now."""
        self._draining.set()
        if is_now:
            self._drain_now.set()

    async def run(self) -> None:
        """Until drained. Raises what breaks the engine, and StoppedWaiting."""
        await until_answered(lambda: self._registry.publish_model(self.card, self._blob), self._draining)
        while not self._draining.is_set():
            with contextlib.suppress(LeaseLost):
                await self._serve()

    async def _serve(self) -> None:
        """One registration, until it is drained. Raises LeaseLost."""
        host, s = self._host, self._host.settings
        identity = (f"w-{secrets.token_hex(4)}", secrets.token_hex(8))
        queue = RequestQueue(host.scripts, self.card.revision, s.retention_s, s.lease_ms)
        stream = TokenStream(host.scripts, self.card.revision, s.retention_s, s.lease_ms)
        share, stopped = host.shares.open(), host.shares.thread.stopped
        holdings = Holdings(queue, share, host.shares.make_room)
        publisher = Publisher(stream, share, holdings, identity, host.telemetry.on_emit, host.on_order)
        consumer = Consumer(queue, host.bell, share, holdings, identity, host.telemetry.on_delivery)
        maintenance = Maintenance(queue, share, holdings, consumer, publisher, identity)
        leaving = Leaving(queue, share, holdings, publisher, self._drain_now)
        share.on_outputs, share.on_room = publisher.offer, consumer.make_room
        consumer.is_for_others = self._is_for_others
        info = msgspec.json.encode(self._info(identity[0]))
        tasks: list[asyncio.Task[None]] = []
        draining = asyncio.create_task(self._draining.wait())
        try:
            await until_answered(lambda: queue.register(*identity, info), self._draining)
            self.is_registered.set()
            log.info("worker_ready", extra={"worker": identity[0], "model": self.card.revision})
            running = (consumer.run(), publisher.run(), maintenance.run(s, self._republish))
            tasks += [asyncio.create_task(coroutine) for coroutine in running]
            await first_of(draining, *tasks, stopped)
            consumer.quiet()
            await leaving.finish_or_give_back(s.drain_timeout_s, *tasks[1:], stopped)
            await leaving.unregister(identity, s.lease_ms)
        except LeaseLost:
            log.warning("lease_lost", extra={"worker": identity[0], "num_held": len(holdings)})
            raise
        finally:
            await end_tasks(draining, *tasks)
            holdings.drop_all()
            # The publisher that held the engine back is gone, and what it could not send with it.
            share.close()

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
