"""From a cancel's answer to freed KV blocks, counted in steps of the engine: the real worker, its simulated backend.

The worker learns of a cancel from the reply to its next emit; meanwhile the engine has begun its next step, and lets go
before the one after. A long prompt that runs beside short ones is cancelled.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import typer
from prometheus_client import CollectorRegistry

from loadtest.results import write_results
from loadtest.valkey import Valkey
from shared.config import RedisSettings, WorkerSettings
from shared.observability import WorkerMetrics
from shared.redis_client import Scripts, connect
from shared.registry import Registry
from shared.request_queue import Bounds, RequestQueue, Ticket
from shared.schemas import Request, SamplingParams, encode_request
from worker.backends.interface import Engine
from worker.composition import build_engine
from worker.engine.outputs import EngineLoad
from worker.engine_thread import EngineThread
from worker.service import WorkerService

LONG_PROMPT, SHORT_PROMPT, NUM_OTHERS = 2000, 16, 15
MAX_TOKENS = 2000  # so that all fit side by side to their end: else the engine would not run them together


@dataclass(frozen=True, slots=True)
class Freed:
    """`steps` that ended between the cancel's answer and the moment the engine freed the blocks."""

    steps: int
    milliseconds: float
    num_blocks: int


class _Worker(WorkerService):
    """The real service in this process; `aborts` tells when its engine let go of a request, and of how many blocks."""

    def __init__(self, url: str, step_us: float) -> None:
        settings = WorkerSettings(
            redis_url=url, backend="simulated", max_num_seqs=32, max_step_tokens=4096, sim_step_us=step_us,
            sim_prefill_us_per_token=0, log_level="error",
        )  # fmt: skip
        super().__init__(settings, WorkerMetrics(CollectorRegistry()))
        self.load = EngineLoad(0, 0, 0, 0, 0, 0)
        self.loop = asyncio.get_running_loop()
        self.aborts: asyncio.Queue[tuple[EngineLoad, float, int]] = asyncio.Queue()
        self.stepped = asyncio.Event()
        self._engine = EngineThread(lambda: self._watched(build_engine(settings)), self._on_step)

    def _watched(self, engine: Engine) -> Engine:
        abort = engine.abort

        def watched(request_ids: Iterable[str]) -> None:
            before = engine.load().kv_blocks_used
            abort(request_ids)
            load = engine.load()
            freed = before - load.kv_blocks_used
            if freed:  # it may be told twice: by the fence and by the command
                self.loop.call_soon_threadsafe(self.aborts.put_nowait, (load, time.monotonic(), freed))

        engine.abort = watched
        return engine

    def _on_step(self, seconds: float, engine_load: EngineLoad) -> None:
        self._telemetry.on_step(seconds, engine_load)
        self.load = engine_load
        self.loop.call_soon_threadsafe(self.stepped.set)

    async def until_blocks(self, number: int) -> None:
        while self.load.kv_blocks_used < number:
            self.stepped.clear()
            await self.stepped.wait()


class _Client:
    def __init__(self, queue: RequestQueue) -> None:
        self._queue = queue
        self._num = 0

    async def ask(self, num_prompt_tokens: int) -> str:
        self._num += 1
        request_id = f"r-{self._num}"
        params = SamplingParams(max_tokens=MAX_TOKENS, seed=self._num, ignore_eos=True)
        prompt = tuple(i % 200 for i in range(num_prompt_tokens))
        body = encode_request(Request(request_id=request_id, model=self._queue.model, prompt_ids=prompt, params=params))
        ticket = Ticket(request_id, "default", "t", num_prompt_tokens, MAX_TOKENS, 1)
        await self._queue.admit(ticket, body, Bounds(0, 0, 0), gateway="g-one")
        return request_id


async def measure(url: str, trials: int, step_us: float) -> list[Freed]:
    client = connect(RedisSettings(redis_url=url))
    scripts = Scripts(client)
    worker = _Worker(url, step_us)
    serving = asyncio.create_task(worker.run())
    registry = Registry(scripts)
    while not (cards := await registry.models()):  # noqa: ASYNC110  the worker's start has no event for this
        await asyncio.sleep(0.02)
    queue = RequestQueue(scripts, cards[0].revision, 60, 6000)
    asking = _Client(queue)
    for _ in range(NUM_OTHERS):
        await asking.ask(SHORT_PROMPT)
    await worker.until_blocks(NUM_OTHERS)
    found: list[Freed] = []
    for number in range(trials):
        request_id = await asking.ask(LONG_PROMPT)
        await worker.until_blocks(LONG_PROMPT // 16)
        await asyncio.sleep(step_us / 1e6 * (2 + number % 7 / 7))  # at any moment of a step
        assert await queue.cancel(request_id) == "cancelled"
        asked, started = worker.load, time.monotonic()
        load, at, num_blocks = await worker.aborts.get()
        found.append(Freed(load.steps - asked.steps, (at - started) * 1000, num_blocks))
        await asyncio.sleep(2 * step_us / 1e6)
    worker.drain()
    worker.drain()
    await serving
    await client.aclose()
    return found


def main(trials: int = 60, step_us: float = 20_000.0) -> None:
    """Cancel to freed blocks: within two engine steps."""
    with tempfile.TemporaryDirectory() as folder:
        server = Valkey(Path(folder))
        try:
            found = asyncio.run(measure(server.url, trials, step_us))
        finally:
            server.kill()
    steps = Counter(freed.steps for freed in found)
    milliseconds = sorted(freed.milliseconds for freed in found)
    typer.echo(f"{trials} cancels of a request with {found[0].num_blocks} blocks, steps of {step_us / 1000:.0f} ms:")
    typer.echo("  freed after " + ", ".join(f"{number} steps: {steps[number]}" for number in sorted(steps)))
    typer.echo(f"  {statistics.median(milliseconds):.1f} ms (median), {milliseconds[-1]:.1f} ms (most)")
    typer.echo(f"  within two steps: {sum(freed.steps <= 2 for freed in found)} of {trials}")
    figures = {"steps": {str(k): v for k, v in steps.items()}, "milliseconds": milliseconds, "step_us": step_us}
    typer.echo(f"written to {write_results('cancel', figures)}")
