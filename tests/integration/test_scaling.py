"""How many workers a model wants, from a queue on the real server: figures, endpoint, command, gauges."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from deploy.cli import app
from gateway.models.catalogue import Catalogue
from gateway.upkeep import Upkeep
from loadtest.valkey import Valkey
from shared import keys
from shared.config import GatewaySettings
from shared.observability import GatewayMetrics
from shared.operations.scaling.reading import read_scaling
from shared.operations.scaling.wanted import Policy
from shared.registry import Registry
from shared.schemas import WorkerInfo
from tests.integration.queue_actors import END, MODEL, Actors, tokens
from tests.integration.test_operations import CARD
from tests.integration.test_operator_rest import KEY, OperatorClient, error_of

POLICY = Policy(target_wait_s=1, min_workers=0, idle_s=60)


async def register(actors: Actors, worker: str, *, slots: int = 2, load: bytes = b"{}") -> None:
    info = WorkerInfo(worker_id=worker, model=MODEL, backend="none", host="h", pid=1, max_num_seqs=slots, kv_blocks=64)
    await actors.queue.register(worker, "nonce", msgspec.json.encode(info))
    await actors.queue.heartbeat(worker, "nonce", load)


async def run_one(actors: Actors, request_id: str, *, took_ms: int) -> None:
    """A request that a worker had for so long, by the server's clock."""
    await actors.admit(request_id)
    delivery = await actors.take_one("w1")
    at = int(delivery.owner.rpartition("/")[2])
    await actors.scripts.client.hset(keys.request(MODEL, request_id), "taken_at", str(at - took_ms))
    await actors.emit("w1", delivery, tokens(*range(6)) + END, final="finished", num_tokens=6)


@pytest.fixture(autouse=True)
async def model(actors: Actors) -> None:
    await Registry(actors.scripts).publish_model(CARD, b"{}")


async def row(actors: Actors, policy: Policy = POLICY) -> Any:
    (found,) = await read_scaling(actors.scripts, policy)
    return found


async def test_nothing_waits_and_none_lives(actors: Actors) -> None:
    found = await row(actors)
    assert (found.wanted_workers, found.revisions[0].because) == (0, "idle")


async def test_from_zero_one_is_wanted_as_soon_as_something_waits(actors: Actors) -> None:
    await actors.admit("r1")
    found = await row(actors)
    assert (found.wanted_workers, found.live_workers, found.revisions[0].wait_ms) == (1, 0, None)


async def test_how_fast_a_worker_is_follows_from_what_ended(actors: Actors) -> None:
    await register(actors, "w1", slots=2)
    for number in range(4):
        await run_one(actors, f"r{number}", took_ms=10_000)
    for number in range(10):
        await actors.admit(f"waiting{number}", prompt_tokens=14)
    (found,) = (await row(actors, Policy(target_wait_s=10.5))).revisions
    # 4 tokens of prompt and 6 of answer in ten slot-seconds, two slots; 10 x (14 + 6) tokens wait.
    assert found.worker_tokens_per_s == pytest.approx(2, rel=0.03) and found.expected_tokens == 200
    assert (found.needed_workers, found.because, found.waiting_tokens) == (10, "wait", 140)
    assert found.drain_per_s == pytest.approx(4 / 60, rel=0.01) and found.wait_ms == pytest.approx(100_000, rel=0.03)


async def test_what_runs_keeps_its_workers(actors: Actors) -> None:
    await register(
        actors, "w1", load=b'{"num_running": 2, "num_waiting": 1, "kv_blocks_used": 9, "kv_blocks_total": 10}'
    )
    await actors.admit("r1")
    await actors.take_one("w1")
    (found,) = (await row(actors)).revisions
    assert (found.running, found.busy_slots, found.slots, found.needed_workers) == (1, 3, 2, 2)


async def test_a_worker_that_leaves_or_is_late_is_not_counted(actors: Actors) -> None:
    for worker in ("w1", "w2", "w3"):
        await register(actors, worker)
    await actors.scripts.run("drain", keys.counts(MODEL), "w2", "", "ann")
    await actors.lose("w3")
    assert (await row(actors)).live_workers == 1


async def test_an_idle_worker_is_wanted_until_idle_s_have_passed(actors: Actors) -> None:
    await register(actors, "w1")
    assert (await row(actors)).revisions[0].because == "recent"
    found = await row(actors, Policy(min_workers=0, idle_s=0))
    assert (found.wanted_workers, found.revisions[0].because) == (0, "idle")


async def test_the_oldest_is_found_among_all_tenants(actors: Actors) -> None:
    await actors.admit("first", tenant="other", service_class="flex")
    first = int(await actors.scripts.client.hget(keys.request(MODEL, "first"), "admitted_at") or b"0")
    await actors.admit("second")
    (found,) = (await row(actors)).revisions
    assert found.oldest_age_ms == found.at_ms - first


async def test_revisions_of_a_name_are_wanted_together(actors: Actors) -> None:
    older = msgspec.structs.replace(CARD, revision="tiny@other")
    await Registry(actors.scripts).publish_model(older, b"{}")
    await actors.admit("r1")
    found = await row(actors, Policy(min_workers=3))
    assert (found.wanted_workers, [each.needed_workers for each in found.revisions]) == (3, [1, 0])


async def test_the_endpoint_has_the_path_that_keda_is_told(valkey: Valkey, actors: Actors) -> None:
    await actors.admit("r1")
    async with OperatorClient(valkey.url, KEY) as client:
        client.headers["authorization"] = f"Bearer {KEY}"
        asked = {"model": "tiny", "min_workers": 0, "target_wait_s": 5}
        told = (await client.get("/operator/v1/scaling", params=asked)).json()
        for step in ("data", 0, "wanted_workers"):
            told = told[step]
        assert told == 1
        wrong = [{"max_worker": 3}, {"utilisation": 2}, {"min_workers": 5, "max_workers": 4}, {"target_wait_s": "soon"}]
        answers = [await client.get("/operator/v1/scaling", params=query) for query in wrong]
        assert [error_of(answer)[0] for answer in answers] == [400] * 4
        assert error_of(await client.get("/operator/v1/scaling?model=other")) == (404, "model_not_found")


async def test_the_command_shows_the_same(valkey: Valkey, actors: Actors) -> None:
    await register(actors, "w1")
    await actors.admit("r1")
    told = (await asyncio.to_thread(CliRunner().invoke, app, ["scaling", "tiny", "--redis", valkey.url])).stdout
    assert "tiny: 1 wanted" in told and re.search(r"waiting 1, tokens 4,", told) and "# redis-cli XREVRANGE" in told


async def test_gateways_tell_prometheus(valkey: Valkey, actors: Actors) -> None:
    await register(actors, "w1")
    await actors.admit("r1")
    settings = GatewaySettings(redis_url=valkey.url, scaling_min_workers=5)
    metrics = GatewayMetrics(CollectorRegistry())
    upkeep = Upkeep(settings, actors.scripts, "g1", Catalogue(settings, actors.scripts, metrics), metrics)
    await upkeep.start()
    while metrics.registry.get_sample_value("headrace_queue_expected_tokens", {"model": "tiny"}) is None:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await upkeep.stop()
    wanted = metrics.registry.get_sample_value("headrace_workers_wanted", {"model": "tiny"})
    slots = metrics.registry.get_sample_value("headrace_worker_slots", {"model": "tiny", "state": "all"})
    assert (wanted, slots) == (5, 2)
