"""An operator's commands on a live deployment: what a client sees of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from openai import APIError, APIStatusError, AsyncOpenAI
from typer.testing import CliRunner

from deploy.cli import app
from loadtest.stack import Stack
from tests.e2e.books import settled_books
from tests.e2e.conftest import SIMULATED, async_client_of
from tests.e2e.test_failures import MESSAGES, answer, eight

pytestmark = pytest.mark.e2e
KEY = "an operator's key"


class Fragile(Stack):
    """The workers it starts with die before their first token; those started later are sound."""

    def settings_of(self, name: str) -> dict[str, object]:
        sick: dict[str, object] = {"allow_faults": True, "faults": "before_emit:kill"}
        return sick if name in ("worker0", "worker1") else {}


@pytest.fixture
def fragile(tmp_path: Path) -> Iterator[Stack]:
    with Fragile(tmp_path, num_workers=2, env=SIMULATED | {"max_crashes": 1, "operator_key": KEY}) as stack:
        yield stack


@pytest.fixture
async def client(breakable: Stack) -> AsyncIterator[AsyncOpenAI]:
    async with async_client_of(breakable) as client:
        yield client


async def headrace(stack: Stack, *words: str) -> Any:
    """What `headrace ... --json` found."""
    line = [*words, "--json", "--redis", stack.valkey.url]
    told = await asyncio.to_thread(CliRunner().invoke, app, line)
    assert told.exit_code == 0, told.output
    return orjson.loads(told.stdout)["data"]


async def until_waiting(stack: Stack, number: int) -> None:
    while (await headrace(stack, "queue"))[0]["counts"].get("waiting", 0) != number:
        pass


async def test_a_paused_model_is_served_when_it_is_resumed(breakable: Stack, client: AsyncOpenAI) -> None:
    expected = await answer(client)
    await headrace(breakable, "pause", "simulated", "--why", "drill")
    asking = asyncio.create_task(answer(client))
    await until_waiting(breakable, 1)
    (row,) = await headrace(breakable, "queue")
    assert (row["paused"]["why"], row["counts"]["running"]) == ("drill", 0)
    await until_shown_as_paused(breakable, [row["model"]])
    await headrace(breakable, "resume", "simulated")
    assert await asking == expected
    assert (await settled_books(breakable)).problems == []


async def until_shown_as_paused(stack: Stack, models: list[str]) -> None:
    """By the gateway's readiness, which reads it every model_poll_s."""
    async with httpx.AsyncClient(trust_env=False) as client:
        while (await client.get(f"{stack.base_url}/health/ready")).json()["paused"] != models:
            pass


async def test_a_deadline_passes_while_the_model_is_paused(breakable: Stack, client: AsyncOpenAI) -> None:
    await headrace(breakable, "pause", "simulated")
    with pytest.raises(APIStatusError) as refused:
        await client.chat.completions.create(
            model="simulated", messages=MESSAGES, extra_headers={"x-headrace-deadline-ms": "300"}
        )
    assert (refused.value.status_code, refused.value.code) == (504, "deadline_exceeded")


@pytest.mark.parametrize("how", [(), ("--now",)])
async def test_a_drained_worker_leaves_and_its_streams_go_on(
    breakable: Stack, client: AsyncOpenAI, how: tuple[str, ...]
) -> None:
    tasks, expected = await eight(client)
    fleet = (await headrace(breakable, "workers"))["workers"]
    (gone,) = [
        row["worker_id"] for rows in fleet.values() for row in rows if row["info"]["pid"] == breakable.workers[0].pid
    ]
    await headrace(breakable, "drain", gone, *how)
    assert await asyncio.gather(*tasks) == [expected] * 8
    assert await asyncio.to_thread(breakable.workers[0].wait) == 0
    assert (await settled_books(breakable)).problems == []


async def test_a_cancelled_request_ends_for_its_client(breakable: Stack, client: AsyncOpenAI) -> None:
    started = asyncio.Event()
    asking = asyncio.create_task(answer(client, max_tokens=4000, started=started))
    await started.wait()
    request_id = await running_request(breakable)
    assert (await headrace(breakable, "cancel", request_id, "--by", "ann"))["state"] == "cancelled"
    with pytest.raises(APIError, match="cancelled"):
        await asking
    assert (await headrace(breakable, "request", request_id))["fields"]["ended_by"] == "ann"


async def running_request(stack: Stack) -> str:
    """The id of the one request that runs, as an operator finds it."""
    fleet = (await headrace(stack, "workers"))["workers"]
    names = [row["worker_id"] for rows in fleet.values() for row in rows]
    (request_id,) = [found for name in names for found in (await headrace(stack, "workers", name))["requests"]]
    return request_id


async def test_a_dead_letter_is_retried_over_rest_on_a_sound_worker(fragile: Stack) -> None:
    async with async_client_of(fragile) as client:
        with pytest.raises(APIError):
            await answer(client)
    await asyncio.gather(*(asyncio.to_thread(worker.wait) for worker in fragile.workers))
    fragile.workers.append(fragile.start_worker("sound"))
    async with httpx.AsyncClient(base_url=fragile.base_url, trust_env=False) as rest:
        rest.headers["authorization"] = f"Bearer {KEY}"
        (letter,) = (await rest.get("/operator/v1/dead")).json()["data"]
        retried = (await rest.post(f"/operator/v1/dead/{letter['request_id']}/retry")).json()["data"]["retried_as"]
        found = await until_done(rest, retried)
    assert (found["state"], found["fields"]["tokens"]) == ("finished", "60")
    assert (await settled_books(fragile)).problems == []


async def until_done(rest: httpx.AsyncClient, request_id: str) -> Any:
    """Its timeline once it has ended; the test's own timeout bounds the wait."""
    while True:
        found = (await rest.get(f"/operator/v1/requests/{request_id}")).json()["data"]
        if found["state"] not in ("waiting", "running"):
            return found
        await asyncio.sleep(0.05)
