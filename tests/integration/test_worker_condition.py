"""A whole worker on a real server: warm before it takes, quarantined while its engine fails, let back in by a probe."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from loadtest.valkey import Valkey
from shared import keys
from shared.config import WorkerSettings
from shared.observability import WorkerMetrics
from shared.redis_client import Scripts
from shared.registry import Registry, WorkerRow
from shared.request_queue import RequestQueue, Ticket
from shared.schemas import EndFrame, ErrorInfo, Outcome, Prefix, Request, SamplingParams, encode_request
from tests.integration.queue_actors import NO_BOUNDS
from worker import service
from worker.backends.simulated import SimulatedConfig, build_simulated
from worker.condition.phase import Phase, Standing
from worker.engine.outputs import StepOutput
from worker.service import WorkerService

FAST: dict[str, Any] = {"backend": "simulated", "lease_ms": 900, "heartbeat_ms": 100, "reap_ms": 200, "warmup_s": 5.0}


class Breakable:
    """The simulated engine; what is asked of it while it is broken ends as a NaN does."""

    resume_exact = True

    def __init__(self) -> None:
        self._engine = build_simulated(SimulatedConfig(step_us=500))
        self.card, self.tokenizer_blob = self._engine.card, self._engine.tokenizer_blob
        self.is_broken = False
        self.asked: list[str] = []
        self._failed: list[str] = []
        self.load, self.close, self.abort = self._engine.load, self._engine.close, self._engine.abort

    def add(self, request: Request, prefixes: Sequence[Prefix]) -> None:
        self.asked.append(request.request_id)
        if self.is_broken:
            self._failed.append(request.request_id)
        else:
            self._engine.add(request, prefixes)

    def step(self) -> list[StepOutput]:
        failed, self._failed = self._failed, []
        end = EndFrame(Outcome.FAILED, None, ErrorInfo("output_not_finite", "the model's output is not finite"))
        outputs = [StepOutput(name, [end], 0, Outcome.FAILED) for name in failed]
        return outputs + (self._engine.step() if self._engine.has_work() else [])

    def has_work(self) -> bool:
        return bool(self._failed) or self._engine.has_work()

    def forget_prefixes(self) -> None:
        self._engine.forget_prefixes()  # type: ignore[attr-defined]


class Running:
    """A worker over one such engine, and what its server says."""

    def __init__(self, scripts: Scripts, engine: Breakable, standing: Standing) -> None:
        self.engine, self.standing = engine, standing
        self.model = engine.card.revision
        self.scripts = scripts
        self.queue = RequestQueue(scripts, self.model, 60, 900)

    async def ask(self, name: str) -> None:
        params = SamplingParams(max_tokens=4, seed=1)
        body = encode_request(Request(request_id=name, model=self.model, prompt_ids=(5, 6), params=params))
        ticket = Ticket(name, "default", "t", prompt_tokens=2, max_tokens=4, n=1)
        await self.queue.admit(ticket, body, NO_BOUNDS, gateway="g1")

    async def field(self, name: str, field: str) -> str:
        return (await self.scripts.client.hget(keys.request(self.model, name), field) or b"").decode()

    async def rows(self, state: str) -> list[WorkerRow]:
        return [row for row in await Registry(self.scripts).workers(self.model) if row.state == state]

    async def until(self, holds: Callable[[], Any]) -> None:
        async with asyncio.timeout(20):
            while not await holds():  # noqa: ASYNC110 - no event tells of a server's fields
                await asyncio.sleep(0.01)

    async def until_ended(self, name: str, state: str = "finished") -> None:
        async def has_ended() -> bool:
            return await self.field(name, "state") == state

        await self.until(has_ended)


@contextlib.asynccontextmanager
async def worker(
    scripts: Scripts, valkey: Valkey, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> AsyncGenerator[Running]:
    engine = Breakable()
    engine.is_broken = settings.pop("is_broken", False)
    monkeypatch.setattr(service, "build_engine", lambda _settings: engine)
    metrics = WorkerMetrics(CollectorRegistry())
    standing = Standing(metrics)
    whole = WorkerService(WorkerSettings(redis_url=valkey.url, **FAST | settings), metrics, standing)
    running = asyncio.create_task(whole.run())
    try:
        yield Running(scripts, engine, standing)
        whole.drain()
        await asyncio.wait_for(running, 10)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_worker_is_warm_before_it_takes_and_nothing_of_that_is_seen(
    scripts: Scripts, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with worker(scripts, valkey, monkeypatch) as w:
        await w.ask("r1")
        await w.until_ended("r1")
        names = w.engine.asked
        assert names[-1] == "r1" and len(names) == 1 + 1 + 1 + 4 + 16
        assert [key async for key in scripts.client.scan_iter("*warm-up*")] == []
        shown = w.standing.answer("/metrics")[2].decode()
        assert 'headrace_prompt_tokens_total{source="computed"} 2.0' in shown
        assert w.engine._engine._scheduler.kv.num_used == 0  # type: ignore[attr-defined]


async def test_what_the_warm_up_computed_is_not_in_the_prefix_cache(
    scripts: Scripts, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with worker(scripts, valkey, monkeypatch) as w:
        await w.until(lambda: w.rows("live"))
        assert len(w.engine._engine._scheduler.kv.cache) == 0  # type: ignore[attr-defined]


async def test_it_can_be_switched_off(scripts: Scripts, valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    async with worker(scripts, valkey, monkeypatch, warmup_s=0.0) as w:
        await w.until(lambda: w.rows("live"))
        assert w.engine.asked == []


async def test_an_engine_that_keeps_failing_stops_taking_and_nobody_dies_of_it(
    scripts: Scripts, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with worker(scripts, valkey, monkeypatch, quarantine_pause_s=0.3) as w:
        await w.until(lambda: w.rows("live"))
        w.engine.is_broken = True
        names = [f"r{i}" for i in range(6)]
        for name in names:
            await w.ask(name)
        await w.until(lambda: w.rows("quarantined"))
        (row,) = await w.rows("quarantined")
        assert "3 failures within" in row.why and await Registry(scripts).num_live_workers(w.model) == 0
        assert w.standing.phase is Phase.QUARANTINED
        assert {await w.field(name, "state") for name in names} == {"waiting"}
        assert max([int(await w.field(name, "crashes")) for name in names]) <= 2
        w.engine.is_broken = False
        for name in names:
            await w.until_ended(name)
        assert w.standing.phase is Phase.PULLING and await w.rows("quarantined") == []


async def test_a_request_that_fails_everywhere_is_a_dead_letter_and_no_reason(
    scripts: Scripts, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with worker(scripts, valkey, monkeypatch) as w:
        await w.until(lambda: w.rows("live"))
        w.engine.is_broken = True
        await w.ask("poison")
        await w.until_ended("poison", "dead")
        assert w.standing.phase is Phase.PULLING


async def test_a_worker_whose_warm_up_fails_takes_nothing_until_a_probe_is_good(
    scripts: Scripts, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with worker(scripts, valkey, monkeypatch, is_broken=True, quarantine_pause_s=0.2) as w:
        await w.ask("r1")
        await w.until(lambda: w.rows("quarantined"))
        assert await w.field("r1", "attempt") == "0"
        w.engine.is_broken = False
        await w.until_ended("r1")


async def test_a_named_worker_that_ended_early_thrice_is_slow_to_take(
    scripts: Scripts, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(scripts)
    assert [await registry.begin_run("w-a", f"run{i}", 300) for i in range(3)] == [0, 1, 2]
    async with worker(scripts, valkey, monkeypatch, worker_name="w-a", quarantine_pause_s=0.3) as w:
        await w.until(lambda: w.rows("quarantined"))
        (row,) = await w.rows("quarantined")
        assert row.why == "3 starts of w-a ended early"
        await w.until(lambda: w.rows("live"))
    assert await registry.begin_run("w-a", "next", 300) == 3, "who was told to end did not end early"
