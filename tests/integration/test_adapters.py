"""Adapters as models of their own on a real worker (simulated backend): served beside its model, loaded and unloaded
by an operator's order, refused by name; fsck holds the books of every revision."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from loadtest.valkey import Valkey
from shared.config import WorkerSettings
from shared.errors import AdapterRefused, ConfigurationError, WorkerNotFound
from shared.fsck import fsck
from shared.observability import WorkerMetrics
from shared.operations import adapters
from shared.operations.desk import Desk
from shared.redis_client import Scripts
from shared.registry import Registry, RequestRecord, read_record
from shared.request_queue import Bounds, RequestQueue, Ticket
from shared.schemas import Request, SamplingParams, encode_request
from worker.service import WorkerService

NO_BOUNDS = Bounds(0, 0, 0)


def folder(path: Path, text: str = "{}") -> Path:
    path.mkdir(exist_ok=True)
    (path / "adapter_config.json").write_text(text)
    return path


@contextlib.asynccontextmanager
async def served(url: str, scripts: Scripts, num_models: int, **changes: Any) -> AsyncGenerator[Desk]:
    """A worker with the desk of its operator, when it serves so many models."""
    plain = {
        "redis_url": url,
        "backend": "simulated",
        "sim_step_us": 200,
        "sim_prefill_us_per_token": 0,
        "heartbeat_ms": 20,
    }
    settings = WorkerSettings.model_validate(plain | changes)
    service = WorkerService(settings, WorkerMetrics(CollectorRegistry()))
    serving = asyncio.create_task(service.run())
    registry = Registry(scripts)
    while sum([await registry.num_live_workers(card.revision) for card in await registry.models()]) < num_models:
        await asyncio.wait({serving}, timeout=0.01)
        if serving.done():
            serving.result()
    yield Desk(scripts, settings, NO_BOUNDS)
    service.drain()
    await serving
    for card in await registry.models():
        assert (await fsck(scripts, card.revision)).problems == []


async def ask(scripts: Scripts, model: str, request_id: str, max_tokens: int = 4) -> None:
    queue = RequestQueue(scripts, model, retention_s=60, lease_ms=6000)
    params = SamplingParams(max_tokens=max_tokens, seed=1, temperature=0.0)
    body = encode_request(Request(request_id=request_id, model=model, prompt_ids=(20, 21, 22), params=params))
    await queue.admit(Ticket(request_id, "default", "t", 3, max_tokens, 1), body, NO_BOUNDS, gateway="g1")


async def done(scripts: Scripts, model: str, request_id: str) -> RequestRecord:
    while not (record := await read_record(scripts.client, model, request_id)) or not record.is_done:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return record


async def revision(scripts: Scripts, name: str) -> str:
    return next(card.revision for card in await Registry(scripts).models() if card.name == name)


async def worker_of(desk: Desk, name: str) -> str:
    (row,) = (await desk.workers())[await revision(desk.scripts, name)]
    return row.worker_id


async def test_configured_adapters_are_models_beside_the_workers_own(
    valkey: Valkey, scripts: Scripts, tmp_path: Path
) -> None:
    spec = ",".join(f"{name}={folder(tmp_path / name, name)}" for name in ("poet", "clerk"))
    async with served(valkey.url, scripts, 3, adapters=spec):
        models = {card.name: card for card in await Registry(scripts).models()}
        assert {name: card.parent for name, card in models.items()} == {
            "simulated": "", "poet": "simulated", "clerk": "simulated",
        }  # fmt: skip
        for name, card in models.items():
            await ask(scripts, card.revision, f"r-{name}")
        ends = [(await done(scripts, card.revision, f"r-{name}")).state for name, card in models.items()]
        assert ends == ["finished"] * 3


async def test_a_model_with_much_work_does_not_starve_another(valkey: Valkey, scripts: Scripts, tmp_path: Path) -> None:
    """Two slots, and long answers of one model that fill both and wait in line."""
    spec = f"poet={folder(tmp_path / 'poet')}"
    async with served(valkey.url, scripts, 2, adapters=spec, max_num_seqs=2, sim_step_us=2000, drain_timeout_s=0):
        poet, base = [await revision(scripts, name) for name in ("poet", "simulated")]
        for number in range(20):
            await ask(scripts, base, f"long-{number}", max_tokens=100)
        await ask(scripts, poet, "short")
        assert (await done(scripts, poet, "short")).state == "finished"
        counts = await RequestQueue(scripts, base, 60, 6000).counts()
        assert counts["waiting"] > 10


async def test_an_adapter_is_loaded_and_unloaded_by_order(valkey: Valkey, scripts: Scripts, tmp_path: Path) -> None:
    path = str(folder(tmp_path / "poet"))
    async with served(valkey.url, scripts, 1) as desk:
        worker = await worker_of(desk, "simulated")
        loaded = (await adapters.load(desk, worker, "poet", path, "ann")).data.adapter
        assert (loaded.state, loaded.revision) == ("ready", await revision(scripts, "poet"))
        await ask(scripts, loaded.revision, "r1", max_tokens=200)
        unloaded = (await adapters.unload(desk, worker, "poet", "ann")).data.adapter
        assert unloaded.state == "unloaded" and await Registry(scripts).workers(loaded.revision) == []
        again = (await adapters.load(desk, worker, "poet", path, "ann")).data.adapter
        assert again.revision == loaded.revision
        assert (await done(scripts, loaded.revision, "r1")).state == "finished"
        assert [row.adapter.state for row in (await adapters.listed(desk)).data] == ["ready"]


async def test_a_refused_order_says_why_and_changes_nothing(valkey: Valkey, scripts: Scripts, tmp_path: Path) -> None:
    path = str(folder(tmp_path / "poet"))
    async with served(valkey.url, scripts, 2, adapters=f"poet={path}", max_adapters=1) as desk:
        worker = await worker_of(desk, "simulated")
        refused = {
            ("poet", path): "adapter_name_taken",
            ("simulated", path): "adapter_name_taken",
            ("clerk", path): "too_many_adapters",
            ("a b", path): "adapter_refused",
        }
        for (name, where), code in refused.items():
            with pytest.raises(AdapterRefused) as error:
                await adapters.load(desk, worker, name, where, "ann")
            assert error.value.code == code
        with pytest.raises(AdapterRefused, match="no adapter clerk"):
            await adapters.unload(desk, worker, "clerk", "ann")
        with pytest.raises(WorkerNotFound):
            await adapters.load(desk, "w-nobody", "clerk", path, "ann")
        await ask(scripts, await revision(scripts, "poet"), "r1")
        assert (await done(scripts, await revision(scripts, "poet"), "r1")).state == "finished"


async def test_a_configured_adapter_that_is_not_there_ends_the_start(
    valkey: Valkey, scripts: Scripts, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=r"adapter poet .*adapter_config.json"):
        async with served(valkey.url, scripts, 2, adapters=f"poet={tmp_path / 'nowhere'}"):
            raise AssertionError("it serves")
