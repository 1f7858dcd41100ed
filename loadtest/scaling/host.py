"""`python -m loadtest.scaling.host START_S`: many real workers in one process, each with its own id, connections and
engine thread, as many as the last line of stdin says.

Each line is a number of workers. More: some are started, and serve START_S later, as if they had a model to load.
Fewer: the newest drain. Each line is answered by one: tokens made since the start, and workers there are. Settings come
by environment, as a worker's do. The end of stdin drains all.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys

import orjson
import uvloop
from prometheus_client import CollectorRegistry

from shared.config import WorkerSettings, load
from shared.observability import WorkerMetrics
from worker.service import WorkerService


class Host:
    def __init__(self, settings: WorkerSettings, start_s: float) -> None:
        self._settings = settings
        self._start_s = start_s
        self._metrics: list[WorkerMetrics] = []
        self._services: list[tuple[WorkerService, asyncio.Task[None]]] = []
        self._leaving: set[asyncio.Task[None]] = set()

    def resize(self, number: int) -> None:
        while len(self._services) < number:
            metrics = WorkerMetrics(CollectorRegistry())
            service = WorkerService(self._settings, metrics)
            self._metrics.append(metrics)
            self._services.append((service, asyncio.create_task(self._serve(service))))
        while len(self._services) > number:
            service, task = self._services.pop()
            service.drain()
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    def report(self) -> bytes:
        values = (m.registry.get_sample_value("headrace_generation_tokens_total") for m in self._metrics)
        tokens = sum(value or 0.0 for value in values)
        return orjson.dumps({"tokens": tokens, "workers": len(self._services)}) + b"\n"

    async def stop(self) -> None:
        self.resize(0)
        await asyncio.gather(*self._leaving)

    async def _serve(self, service: WorkerService) -> None:
        await asyncio.sleep(self._start_s)
        await service.run()


async def serve(settings: WorkerSettings, start_s: float) -> None:
    host = Host(settings, start_s)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        host.resize(int(line))
        sys.stdout.buffer.write(host.report())
        sys.stdout.buffer.flush()
    await host.stop()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        worker_settings = load(WorkerSettings)
        logging.basicConfig(level=worker_settings.log_level.upper(), stream=sys.stderr)  # stdout answers
        uvloop.run(serve(worker_settings, float(sys.argv[1])))
