"""The worker process: built here, started in order, quiet -> stop by a deadline -> give back.

    build engine -> load adapters -> (serve its model and each adapter, reap) -> all drained -> stop engine

An engine that breaks ends the process, so that its leases run out and the crash is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
import socket
import sys
from pathlib import Path

import uvloop
from prometheus_client import CollectorRegistry

from shared import faults
from shared.config import WorkerSettings, load, parse_cpu_set, usable_cpus
from shared.errors import ConfigurationError, HeadraceError
from shared.observability import WorkerMetrics, configure_logging
from shared.reaper import Reaper
from shared.redis_client import Scripts, connect, end_tasks, inspect_server
from shared.registry import Registry
from shared.schemas import ModelCard
from shared.text.tokenizer import encode_blob
from worker.backends.interface import AdapterEngine
from worker.composition import build_engine
from worker.condition.gpu import open_gpu
from worker.condition.phase import Phase, Standing, serve_standing
from worker.condition.quarantine import Failures, Quarantine
from worker.condition.warmup import Probe, warm_up
from worker.consumer import BELL_S
from worker.engine_thread import EngineThread
from worker.serving.adapters import ServedAdapters
from worker.serving.host import Host, StoppedWaiting, until_answered
from worker.serving.registration import ServedModel
from worker.serving.starts import Starts
from worker.shares import Shares
from worker.telemetry import Telemetry

PROBE_S = 20.0
HUNG_LEASES = 10
log = logging.getLogger(__name__)


class WorkerService:
    """One engine, the model it serves, and adapters of it."""

    def __init__(self, settings: WorkerSettings, metrics: WorkerMetrics, standing: Standing | None = None) -> None:
        self._settings = settings
        self._metrics = metrics
        self._telemetry = Telemetry(metrics)
        self._scripts = Scripts(connect(settings), metrics.process.on_command(metrics.redis_up))
        self._bell = connect(settings, blocking_s=BELL_S)
        self._engine = EngineThread(functools.partial(build_engine, settings), self._telemetry.on_step)
        self._shares = Shares(self._engine)
        self._standing = standing = standing or Standing(metrics)
        standing.is_alive = self._is_alive
        failures = Failures(settings.quarantine_failures, settings.quarantine_window_s)
        self._quarantine = Quarantine(standing, failures, settings.quarantine_pause_s)
        self._starts = Starts(Registry(self._scripts), settings)
        self._draining = asyncio.Event()
        self._models: list[ServedModel] = []
        self._running: set[asyncio.Task[None]] = set()
        self._adapters: ServedAdapters | None = None
        self._broken: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Until drained. Raises what breaks the engine."""
        try:
            with contextlib.suppress(StoppedWaiting):
                await self._run()
        finally:
            await self._scripts.client.aclose()
            await self._bell.aclose()

    async def _run(self) -> None:
        await self._check_server()
        await self._starts.begin(self._draining)
        log.info("model_loading", extra={"model": self._settings.model, "backend": self._settings.backend})
        engine = await self._engine.start()
        if self._settings.worker_metrics_vllm:
            self._standing.vllm_model = engine.card.name
        host = Host(
            self._settings, self._scripts, self._bell, self._shares, self._telemetry, self._obey,
            self._standing, self._quarantine,
        )  # fmt: skip
        await self._warm_up(engine.card)
        self._starts.judge(self._quarantine)
        blob = encode_blob(engine.tokenizer_blob)
        base = ServedModel(host, engine.card, blob)
        shelf = engine.adapters if isinstance(engine, AdapterEngine) else None
        self._adapters = ServedAdapters(host, shelf, base, blob, self._start)
        if not self._draining.is_set():
            await self._serve(base)
        await self._engine.stop()
        await self._starts.end()

    async def _serve(self, model: ServedModel) -> None:
        count = self._metrics.reaped
        reaper = Reaper(self._scripts, self._settings, lambda kind, number: count.labels(kind).inc(number))
        probe = functools.partial(self._probe, model.card)
        running = (reaper.run(), self._quarantine.run(probe), self._starts.lived(), self._watch_gpu())
        beside = [asyncio.create_task(work) for work in running]
        self._broken = asyncio.get_running_loop().create_future()
        try:
            assert self._adapters is not None
            await self._adapters.load_configured()
            self._start(model)
            while self._running:
                ends = (*beside, self._broken)
                await asyncio.wait({*ends, *self._running}, return_when=asyncio.FIRST_COMPLETED)
                for failed in ends:
                    if failed.done():
                        failed.result()
        finally:
            await end_tasks(*beside, *self._running)

    def _start(self, model: ServedModel) -> asyncio.Task[None]:
        """Serve it beside the others. What breaks it breaks the worker."""
        if self._draining.is_set():
            model.drain()
        self._models.append(model)
        task = asyncio.create_task(model.run())
        self._running.add(task)
        task.add_done_callback(functools.partial(self._ended, model))
        return task

    def _ended(self, model: ServedModel, task: asyncio.Task[None]) -> None:
        self._models.remove(model)
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._broken is not None and not self._broken.done():
            self._broken.set_exception(error)

    def drain(self) -> None:
        """First call: take nothing more and finish. Second call: give everything back now."""
        self._drain(is_now=self._draining.is_set())

    def _drain(self, *, is_now: bool) -> None:
        self._draining.set()
        self._standing.enter(Phase.DRAINING)
        for model in self._models:
            model.drain(is_now=is_now)

    def _obey(self, order: str, arguments: list[str]) -> None:
        """An operator's command. It may come twice, so only `now` hurries."""
        if order == "drain":
            self._drain(is_now=arguments[:1] == ["now"])
        elif self._adapters is not None:
            self._adapters.obey(order, arguments)

    async def _warm_up(self, card: ModelCard) -> None:
        """Before anything is taken. What is slow is said, what fails is not let in."""
        s = self._settings
        if not s.warmup_s:
            return
        self._standing.enter(Phase.WARMING)
        told = await warm_up(self._shares, card, self._telemetry, max_num_seqs=s.max_num_seqs, within_s=s.warmup_s)
        log.info("worker_warm", extra={"seconds": round(told.seconds, 2), "is_whole": told.is_whole})
        if told.fault:
            self._quarantine.begin(f"the warm-up failed: {told.fault}")

    async def _probe(self, card: ModelCard) -> Probe:
        within_s = self._settings.warmup_s or PROBE_S
        seqs = self._settings.max_num_seqs
        return await warm_up(self._shares, card, self._telemetry, max_num_seqs=seqs, within_s=within_s)

    async def _watch_gpu(self) -> None:
        """For ever, also where there is none to watch."""
        device = self._settings.device
        gpu = await asyncio.to_thread(open_gpu, device)
        while gpu is not None:
            self._telemetry.on_gpu(device, await asyncio.to_thread(gpu.read))
            await asyncio.sleep(self._settings.heartbeat_ms / 1000)
        await asyncio.Event().wait()

    def _is_alive(self) -> bool:
        """False: its engine has not gone round for long, and ending the process is what helps."""
        is_starting = self._standing.phase in (Phase.LOADING, Phase.WARMING)
        return is_starting or self._engine.stalled_s() < HUNG_LEASES * self._settings.lease_ms / 1000

    async def _check_server(self) -> None:
        for finding in await until_answered(lambda: inspect_server(self._scripts.client), self._draining):
            if finding.is_fatal:
                raise ConfigurationError(f"Redis: {finding.what}")
            log.warning("redis_setting", extra={"finding": finding.what})
        self._metrics.redis_up.set(1)  # the next call may be minutes away: the model is loaded first


async def serve(settings: WorkerSettings) -> None:
    metrics = WorkerMetrics(CollectorRegistry())
    standing = Standing(metrics)
    standing.vllm_model = "" if settings.worker_metrics_vllm else None
    if settings.worker_metrics_port:
        serve_standing(standing, settings.worker_metrics_host, settings.worker_metrics_port)
    faults.arm(settings.faults, sleep=asyncio.sleep, on_fault=lambda kind: metrics.faults_injected.labels(kind).inc())
    service = WorkerService(settings, metrics, standing)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, service.drain)
    await service.run()


def keep_to(cores: str) -> None:
    """This process: the threads it has (libraries start some when they are imported), and by them all it will have."""
    if cores not in ("", "auto") and hasattr(os, "sched_setaffinity"):
        wanted = parse_cpu_set(cores, usable_cpus())
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setaffinity(int(thread.name), wanted)


def main() -> None:
    """`headrace worker`: settings from the environment; exit 2 for a wrong setting, 1 for a broken engine."""
    try:
        settings = load(WorkerSettings)
        keep_to(settings.cpu_set)
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
