"""Deadlines on a real server: at the door, while waiting, while the prompt is computed, and after a return."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import pytest
from prometheus_client import CollectorRegistry

from loadtest.valkey import Valkey
from shared import keys
from shared.config import WorkerSettings
from shared.fsck import fsck
from shared.observability import WorkerMetrics
from shared.redis_client import Scripts
from shared.registry import Registry, read_record
from shared.request_queue import RequestQueue, Ticket
from shared.schemas import Request, SamplingParams, encode_request
from tests.integration.queue_actors import MODEL, NO_BOUNDS, Actors, tokens
from worker.service import WorkerService


@pytest.fixture(autouse=True)
async def books_balance(actors: Actors):
    yield
    assert await actors.problems() == []


async def pass_deadline(actors: Actors, request_id: str) -> None:
    await actors.scripts.client.execute_command("ZADD", keys.deadlines(MODEL), 1, request_id)  # type: ignore[attr-defined]


async def test_what_cannot_be_met_is_refused_with_the_figures(actors: Actors) -> None:
    for i in range(3):
        await actors.admit(f"r{i}")
    refused = await actors.admit("late", max_ahead=2)
    assert (refused.decision, refused.detail) == ("too_late", ("3", "2"))
    assert (await actors.admit("in-time", max_ahead=3)).decision == "accepted"
    assert await actors.state("late") == "gone"


async def test_only_what_goes_first_counts_against_a_deadline(actors: Actors) -> None:
    for i in range(8):
        await actors.admit(f"r{i}", tenant="crowd")
    assert (await actors.admit("alone", tenant="other", max_ahead=1)).decision == "accepted"


async def test_nothing_is_taken_after_its_deadline(actors: Actors) -> None:
    await actors.admit("late", start_deadline_ms=60_000)
    await actors.admit("next")
    await pass_deadline(actors, "late")
    await actors.register("w1")
    assert [d.request_id for d in await actors.take("w1")] == ["next"]
    assert await actors.state("late") == "expired"


async def test_a_deadline_that_passes_while_the_prompt_is_computed_ends_it(actors: Actors) -> None:
    await actors.admit("r1", start_deadline_ms=60_000)
    await actors.register("w1")
    delivery = await actors.take_one("w1")
    await pass_deadline(actors, "r1")
    assert (await actors.reap()).is_grace  # deadlines are looked at also while nobody is late
    assert await actors.state("r1") == "expired"
    assert (await actors.queue.heartbeat("w1", "nonce", b"{}")).commands == [b'["cancel","r1"]']
    assert (await actors.emit("w1", delivery, tokens(7))).fenced == ["r1"]


async def test_what_comes_back_late_is_not_taken_again(actors: Actors) -> None:
    await actors.admit("r1", deadline_ms=60_000)
    await actors.register("w1")
    delivery = await actors.take_one("w1")
    await actors.emit("w1", delivery, tokens(7))
    await pass_deadline(actors, "r1")
    await actors.queue.release("r1", delivery.owner)
    assert await actors.take("w1") == []
    assert await actors.state("r1") == "expired"


async def test_a_worker_is_told_what_is_left(actors: Actors) -> None:
    await actors.admit("r1", start_deadline_ms=60_000, deadline_ms=90_000)
    await actors.register("w1")
    first = await actors.take_one("w1")
    assert 0 < first.start_left_ms <= 60_000 < first.left_ms <= 90_000
    await actors.emit("w1", first, tokens(7))
    await actors.queue.release("r1", first.owner)
    again = await actors.take_one("w1")
    assert (again.start_left_ms, 60_000 < again.left_ms <= first.left_ms) == (0, True)


@contextlib.asynccontextmanager
async def served(url: str, scripts: Scripts) -> AsyncGenerator[str]:
    """A worker whose prompts take a second each hundred tokens, in chunks, and that reaps once an hour; its model."""
    settings = WorkerSettings(
        redis_url=url, backend="simulated", max_step_tokens=16, sim_step_us=0, sim_prefill_us_per_token=10_000,
        lease_ms=9_000_000, reap_ms=3_600_000, heartbeat_ms=50,
    )  # fmt: skip
    service = WorkerService(settings, WorkerMetrics(CollectorRegistry()))
    serving = asyncio.create_task(service.run())
    while not (cards := await Registry(scripts).models()):  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.01)
    yield cards[0].revision
    service.drain()
    await serving


async def test_a_worker_gives_up_a_prompt_at_its_deadline_though_nobody_reaps(valkey: Valkey, scripts: Scripts) -> None:
    """It would take more than a minute; its worker looks at the time after each chunk of it."""
    async with served(valkey.url, scripts) as model:
        queue = RequestQueue(scripts, model, retention_s=60, lease_ms=9_000_000)
        params = SamplingParams(max_tokens=4, seed=1)
        body = encode_request(
            Request(request_id="r1", model=model, prompt_ids=tuple(range(10, 250)) * 30, params=params)
        )
        await queue.admit(Ticket("r1", "default", "t", 4, 4, 1, start_deadline_ms=300), body, NO_BOUNDS, gateway="g1")
        while not (record := await read_record(scripts.client, model, "r1")) or not record.is_done:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert (record.state, record.num_tokens, record.error, record.attempt) == (
            "expired", 0, "deadline_exceeded", 1,
        )  # fmt: skip
        assert (await fsck(scripts, model)).problems == []
