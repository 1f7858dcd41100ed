"""The worker process: built here, started in order, quiet -> stop by a deadline -> give back.

    build engine -> publish model -> register -> (consume, publish, maintain, reap) -> drain -> unregister

A worker whose lease was lost drops everything and registers under a new id, in the same process.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
import uvloop
from prometheus_client import CollectorRegistry, start_http_server

from shared import faults
from shared.config import WorkerSettings, load
from shared.errors import ConfigurationError, HeadraceError
from shared.observability import WorkerMetrics, configure_logging
from shared.reaper import Reaper
from shared.redis_client import AWAY, Scripts, connect, end_tasks, inspect_server
from shared.registry import Registry
from shared.request_queue import LeaseLost, RequestQueue
from shared.schemas import ModelCard, WorkerInfo
from shared.text.tokenizer import encode_blob
from shared.token_stream import TokenStream
from worker.composition import build_engine
from worker.consumer import BELL_S, Consumer
from worker.engine_thread import EngineThread
from worker.holdings import Holdings, Settlement
from worker.maintenance import Maintenance
from worker.publisher import Publisher
from worker.telemetry import Telemetry

log = logging.getLogger(__name__)
T = TypeVar("T")
_RETRY_S = 0.5


class _StoppedWaiting(Exception):
    """Told to stop while the server is away."""


class WorkerService:
    """One engine under one identity at a time."""

    def __init__(self, settings: WorkerSettings, metrics: WorkerMetrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._telemetry = Telemetry(metrics)
        self._scripts = Scripts(connect(settings))
        self._bell = connect(settings, blocking_s=BELL_S)
        self._engine = EngineThread(functools.partial(build_engine, settings), self._telemetry.on_step)
        self._draining = asyncio.Event()
        self._drain_now = asyncio.Event()

    async def run(self) -> None:
        """Until drained. Raises what breaks the engine."""
        with contextlib.suppress(_StoppedWaiting):
            await self._run()

    async def _run(self) -> None:
        await self._check_server()
        log.info("model_loading", extra={"model": self._settings.model, "backend": self._settings.backend})
        engine = await self._engine.start()
        card, blob = self._as_told(engine.card), encode_blob(engine.tokenizer_blob)
        republish = functools.partial(self._publish_model, card, blob)
        await self._until_answered(lambda: Registry(self._scripts).publish_model(card, blob))
        while not self._draining.is_set():
            with contextlib.suppress(LeaseLost):
                await self._serve(card, republish)
        await self._engine.stop()
        await self._scripts.client.aclose()
        await self._bell.aclose()

    def drain(self) -> None:
        """First call: take nothing more and finish. Second call: give everything back now."""
        if self._draining.is_set():
            self._drain_now.set()
        self._draining.set()

    def _obey_drain(self, how: str) -> None:
        """An operator's command. It may come twice, so only `now` hurries."""
        self._draining.set()
        if how == "now":
            self._drain_now.set()

    def _as_told(self, card: ModelCard) -> ModelCard:
        """How the model writes calls and reasoning is a setting, and no gateway's."""
        s = self._settings
        return msgspec.structs.replace(card, tool_format=s.tool_format, reasoning_format=s.reasoning_format)

    async def _serve(self, card: ModelCard, republish: Callable[[], Awaitable[None]]) -> None:
        """One registration, until it is drained. Raises LeaseLost."""
        s = self._settings
        identity = (f"w-{secrets.token_hex(4)}", secrets.token_hex(8))
        queue = RequestQueue(self._scripts, card.revision, s.retention_s, s.lease_ms)
        stream = TokenStream(self._scripts, card.revision, s.retention_s, s.lease_ms)
        holdings = Holdings(queue, self._engine, lambda: consumer.make_room())
        publisher = Publisher(stream, self._engine, holdings, identity, self._telemetry.on_emit, self._obey_drain)
        consumer = Consumer(queue, self._bell, self._engine, holdings, identity, self._telemetry.on_delivery)
        maintenance = Maintenance(queue, self._engine, holdings, consumer, publisher, identity)
        self._engine.on_outputs = publisher.offer
        info = msgspec.json.encode(self._info(identity[0], card))
        await self._until_answered(lambda: queue.register(*identity, info))
        log.info("worker_ready", extra={"worker": identity[0], "model": card.revision})
        reaper = Reaper(self._scripts, s, lambda kind, number: self._metrics.reaped.labels(kind).inc(number))
        tasks = [
            asyncio.create_task(consumer.run()),
            asyncio.create_task(publisher.run()),
            asyncio.create_task(maintenance.run(s, republish)),
            asyncio.create_task(reaper.run()),
        ]
        draining = asyncio.create_task(self._draining.wait())
        try:
            await self._first_of(draining, *tasks, self._engine.stopped)
            consumer.quiet()
            await self._finish_or_give_back(holdings, publisher, tasks)
            await self._unregister(queue, identity)
        except LeaseLost:
            log.warning("lease_lost", extra={"worker": identity[0], "num_held": len(holdings)})
            raise
        finally:
            await end_tasks(draining, *tasks)
            holdings.drop_all()
            # The publisher that held the engine back is gone, and what it could not send with it.
            self._engine.pause(is_paused=False)

    async def _finish_or_give_back(
        self, holdings: Holdings, publisher: Publisher, tasks: list[asyncio.Task[None]]
    ) -> None:
        """Let what runs end until the deadline; what is left then goes back, half done."""
        log.info("draining", extra={"num_held": len(holdings)})
        deadline = asyncio.get_running_loop().time() + self._settings.drain_timeout_s
        hurry = asyncio.create_task(self._drain_now.wait())
        while len(holdings) and not hurry.done() and asyncio.get_running_loop().time() < deadline:
            await self._first_of(hurry, *tasks[1:], self._engine.stopped, timeout_s=0.05)
        hurry.cancel()
        self._engine.pause(is_paused=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(publisher.flush(), 1.0)
        for held in holdings:
            log.info("releasing", extra={"request_id": held.request_id})
            with contextlib.suppress(*AWAY):  # unregistering gives back whatever is left
                await holdings.settle(held.request_id, held.owner, Settlement.RELEASED)

    async def _unregister(self, queue: RequestQueue, identity: tuple[str, str]) -> None:
        """Tries as long as a lease lives: after that others have taken back what was held."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._settings.lease_ms / 1000
        while loop.time() < give_up:
            try:
                await queue.unregister(*identity)
                log.info("worker_drained", extra={"worker": identity[0]})
                return
            except AWAY as error:
                log.warning("unregister_failed", extra={"worker": identity[0], "error": str(error)})
                await asyncio.sleep(_RETRY_S)

    async def _first_of(
        self, wanted: asyncio.Future[Any], *others: asyncio.Future[None], timeout_s: float | None = None
    ) -> None:
        """Waits for `wanted`; a task that ended instead has failed, and its error is raised."""
        done, _ = await asyncio.wait((wanted, *others), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for future in done:
            if future is not wanted:
                future.result()

    async def _check_server(self) -> None:
        for finding in await self._until_answered(lambda: inspect_server(self._scripts.client)):
            if finding.is_fatal:
                raise ConfigurationError(f"Redis: {finding.what}")
            log.warning("redis_setting", extra={"finding": finding.what})

    async def _until_answered(self, call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await call()
            except AWAY as error:
                log.warning("redis_away", extra={"error": str(error)})
                if self._draining.is_set():
                    raise _StoppedWaiting from error
                await asyncio.sleep(_RETRY_S)

    async def _publish_model(self, card: ModelCard, blob: bytes) -> None:
        registry = Registry(self._scripts)
        if not await registry.is_published(card):
            await registry.publish_model(card, blob)
            log.info("model_published", extra={"model": card.revision})

    def _info(self, worker_id: str, card: ModelCard) -> WorkerInfo:
        return WorkerInfo(
            worker_id=worker_id,
            model=card.revision,
            backend=self._settings.backend,
            host=socket.gethostname(),
            pid=os.getpid(),
            max_num_seqs=self._settings.max_num_seqs,
            kv_blocks=self._engine.load().kv_blocks_total,
        )


async def serve(settings: WorkerSettings) -> None:
    metrics = WorkerMetrics(CollectorRegistry())
    if settings.worker_metrics_port:
        start_http_server(settings.worker_metrics_port, addr=settings.worker_metrics_host, registry=metrics.registry)
    faults.arm(settings.faults, sleep=asyncio.sleep, on_fault=lambda kind: metrics.faults_injected.labels(kind).inc())
    service = WorkerService(settings, metrics)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, service.drain)
    await service.run()


def main() -> None:
    """`headrace worker`: settings from the environment; exit 2 for a wrong setting, 1 for a broken engine."""
    try:
        settings = load(WorkerSettings)
        configure_logging("worker", f"{socket.gethostname()}-{os.getpid()}", settings.log_level)
        uvloop.run(serve(settings))
    except ConfigurationError as error:
        print(f"headrace worker: {error.message}", file=sys.stderr)
        sys.exit(2)
    except HeadraceError:
        log.exception("worker_failed")
        sys.exit(1)


if __name__ == "__main__":
    main()
