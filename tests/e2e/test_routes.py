"""Two models and three workers behind one gateway, led to by routes; and a model that waits for its first worker."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadtest.stack import Stack
from tests.e2e.books import settled_books
from tests.e2e.conftest import SIMULATED
from tests.e2e.streams import chat_stream, events_of
from tests.e2e.test_operator import headrace

pytestmark = pytest.mark.e2e
BODY: dict[str, Any] = {"prompt": "Of the river", "max_tokens": 1, "temperature": 0}


class Fleet(Stack):
    """Two workers of `alpha`, one of `beta` that computes one request at a time."""

    def settings_of(self, name: str) -> dict[str, object]:
        models = {"worker0": "alpha", "worker1": "alpha", "worker2": "beta"}
        one_at_a_time = {"max_num_seqs": 1} if name == "worker2" else {}
        return {"model_name": models[name], **one_at_a_time} if name in models else {}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Fleet(tmp_path_factory.mktemp("fleet"), num_workers=3, env=SIMULATED | {"model_poll_s": 0.1}) as stack:
        yield stack


@pytest.fixture
async def client(fleet: Stack) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=fleet.base_url, trust_env=False, timeout=60) as client:
        yield client


async def until_listed(client: httpx.AsyncClient, name: str) -> None:
    while (await client.get(f"/v1/models/{name}")).status_code != 200:
        pass


async def served(client: httpx.AsyncClient, model: str, number: int) -> Counter[str]:
    """How many of these requests each model got."""
    room = asyncio.Semaphore(24)

    async def ask() -> str:
        async with room:
            reply = await client.post("/v1/completions", json=BODY | {"model": model})
        assert (reply.status_code, reply.json()["model"]) == (200, model), reply.text
        return reply.headers["x-headrace-model"].partition("@")[0]

    return Counter(await asyncio.gather(*(ask() for _ in range(number))))


async def test_models_are_chosen_by_name_and_alias_and_listed(fleet: Stack, client: httpx.AsyncClient) -> None:
    await headrace(fleet, "route", "set", "default", "--target", "beta")
    await until_listed(client, "default")
    assert [await served(client, name, 4) for name in ("alpha", "beta", "default")] == [
        {"alpha": 4}, {"beta": 4}, {"beta": 4},
    ]  # fmt: skip
    listed = {model["id"] for model in (await client.get("/v1/models")).json()["data"]}
    assert {"alpha", "beta", "default"} <= listed
    unknown = await client.post("/v1/completions", json=BODY | {"model": "gamma"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    assert "'gamma' does not exist. Available models: alpha, beta" in unknown.text and "default" in unknown.text


@pytest.mark.parametrize("number", [200, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])
async def test_a_canary_gets_its_tenth(fleet: Stack, client: httpx.AsyncClient, number: int) -> None:
    await headrace(fleet, "route", "set", "canary", "--target", "alpha=90", "--target", "beta=10")
    await until_listed(client, "canary")
    counts = await served(client, "canary", number)
    assert counts["alpha"] + counts["beta"] == number
    assert counts["beta"] / number == pytest.approx(0.1, abs=0.02), counts


async def test_a_full_queue_is_passed_over_and_the_header_says_so(fleet: Stack, client: httpx.AsyncClient) -> None:
    await headrace(fleet, "route", "set", "beta", "--bound", "max_waiting=1", "--fallback", "alpha")
    await headrace(fleet, "route", "set", "narrow", "--target", "beta")
    await until_listed(client, "narrow")
    async with chat_stream(fleet.base_url, model="beta", max_tokens=2000) as running:
        await running.read(3)
        async with chat_stream(fleet.base_url, model="beta", max_tokens=2000) as waiting:
            reply = await client.post("/v1/completions", json=BODY | {"model": "narrow"})
            assert "x-headrace-fallback" not in waiting.response.headers
    assert (reply.status_code, reply.headers["x-headrace-fallback"]) == (200, "queue_full")
    assert reply.headers["x-headrace-model"].startswith("alpha@") and reply.json()["model"] == "narrow"
    metrics = (await client.get("/metrics")).text
    assert 'headrace_fallbacks_total{model="alpha@' in metrics
    await headrace(fleet, "route", "drop", "beta")


async def until_workers(client: httpx.AsyncClient, model: str, number: int) -> None:
    while (await client.get("/health/ready")).json()["workers"].get(model) != number:
        pass


@pytest.mark.timeout(180)
async def test_a_model_without_workers_keeps_its_requests_until_one_comes_whatever_its_gateway_does(
    tmp_path: Path,
) -> None:
    env = SIMULATED | {"orphan_grace_ms": 30_000, "drain_timeout_s": 0.3, "model_poll_s": 0.2, "model_name": "zero"}
    key = {"Idempotency-Key": "kept"}
    with Stack(tmp_path, env=env) as stack:
        async with httpx.AsyncClient(base_url=stack.base_url, trust_env=False) as client:
            async with chat_stream(stack.base_url, model="zero") as stream:
                expected = (await stream.read()).text
            stack.workers[0].terminate()
            stack.workers[0].wait()
            del stack.workers[0]
            await until_workers(client, "zero", 0)
            async with (
                chat_stream(stack.base_url, key, model="zero") as first,
                chat_stream(stack.base_url, {"X-Headrace-Detach": "true"}, model="zero") as detached,
            ):
                stack.restart_gateway()
            async with chat_stream(stack.base_url, key, model="zero") as second:
                stack.gateway.terminate()
                stack.gateway.wait()
                stack.gateways[0] = stack.start_gateway(0)
                stack.wait_ready(0)
            async with (
                chat_stream(stack.base_url, key, model="zero") as keyed,
                events_of(stack.base_url, detached.request_id) as resumed,
            ):
                stack.workers.append(stack.start_worker("worker1"))
                texts = [(await keyed.read()).text, (await resumed.read()).text]
            assert texts == [expected] * 2
            assert first.request_id == second.request_id == keyed.request_id
            assert (await settled_books(stack)).problems == []


async def test_a_fallback_serves_while_its_target_has_no_worker(fleet: Stack, client: httpx.AsyncClient) -> None:
    await headrace(fleet, "route", "set", "soon", "--target", "unborn")
    await headrace(fleet, "route", "set", "chat", "--target", "beta", "--fallback", "soon", "--fallback", "alpha")
    await until_listed(client, "chat")
    fleet.workers[2].kill()
    fleet.workers[2].wait()
    await until_workers(client, "beta", 0)
    reply = await client.post("/v1/completions", json=BODY | {"model": "chat"})
    assert (reply.status_code, reply.headers["x-headrace-fallback"]) == (200, "no_workers")
    assert reply.headers["x-headrace-model"].startswith("alpha@")
    awaited = await client.post("/v1/completions", json=BODY | {"model": "soon"})
    assert (awaited.status_code, awaited.headers["retry-after"]) == (503, "5")
    assert "no worker has registered the model 'unborn' yet" in awaited.text
    fleet.workers[2] = fleet.start_worker("worker2")
    await until_workers(client, "beta", 1)
