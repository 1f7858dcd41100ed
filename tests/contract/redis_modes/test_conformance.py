"""One suite for every way to run Redis: each call of the queue, the messages, the bell, and a failover."""

from __future__ import annotations

import asyncio

from deploy.doctor import server as doctor
from loadtest.deployments import Deployment
from shared import keys
from shared.access.claims import claim_key
from shared.config import RedisSettings
from shared.redis_client import connect, end_tasks, inspect_server
from shared.registry import Registry
from shared.request_queue import Bounds
from tests.contract.redis_modes.conftest import Mode, also_over_tls, home, ids_at_end
from tests.integration.queue_actors import END, MODEL, tokens


@also_over_tls
async def test_a_request_is_admitted_once_and_runs_to_its_end(mode: Mode) -> None:
    assert (await mode.gateway.admit("r1")).decision == "accepted"
    assert (await mode.gateway.admit("r1")).decision == "duplicate"
    await mode.worker.register("w1")
    delivery = await mode.worker.take_one("w1")
    await mode.worker.emit("w1", delivery, tokens(7))
    await mode.worker.finish("w1", delivery)
    assert (await mode.worker.state("r1"), await mode.worker.ids("r1"), await mode.problems()) == ("finished", [7], [])


@also_over_tls
async def test_tokens_are_heard_by_the_gateway_that_waits(mode: Mode) -> None:
    async with mode.followed("r1", check_ms=60_000) as subscription:
        await mode.gateway.admit("r1")
        await mode.worker.register("w1")
        delivery = await mode.worker.take_one("w1")
        await mode.worker.emit("w1", delivery, tokens(7))
        await mode.worker.emit("w1", delivery, tokens(8) + END, final="finished")
        assert await ids_at_end(subscription) == [7, 8]


async def test_who_is_refused_is_promised_a_time_and_told_the_rest_of_it_when_asking_again(mode: Mode) -> None:
    await mode.gateway.admit("r1")
    for _ in range(2):
        refused = await mode.gateway.admit("r2", bounds=Bounds(1, 0, 0), mark="client", drain_per_s=0.5)
        assert refused.decision == "full" and 0 < int(refused.detail[3]) <= 2106
    assert (await mode.gateway.scripts.client.zcard(keys.promises(MODEL)), await mode.problems()) == (1, [])


async def test_a_key_is_claimed_for_one_model_and_in_time_admitted(mode: Mode) -> None:
    claims = [await claim_key(mode.gateway.scripts, "t", "k", model, "b") for model in (MODEL, "other", MODEL)]
    assert [bool(claim.until_ms) for claim in claims] == [True, False, True]
    admitted = await mode.gateway.admit("r1", idempotency_key="k", claimed_until_ms=claims[0].until_ms)
    assert (admitted.decision, await mode.problems()) == ("accepted", [])


async def test_a_heartbeat_says_what_is_held_and_a_release_gives_it_back(mode: Mode) -> None:
    await mode.gateway.admit("r1")
    await mode.worker.register("w1")
    delivery = await mode.worker.take_one("w1")
    beat = await mode.worker.queue.heartbeat("w1", "nonce", b"{}")
    assert beat.owned == {"r1": (delivery.owner, ("g1",))}
    assert await mode.worker.queue.release("r1", delivery.owner)
    again = await mode.worker.take_one("w1")
    assert (again.owner != delivery.owner, await mode.problems()) == (True, [])


async def test_cancel_ends_at_once_and_its_worker_is_told(mode: Mode) -> None:
    await mode.gateway.admit("r1")
    await mode.worker.register("w1")
    await mode.worker.take_one("w1")
    assert await mode.gateway.queue.cancel("r1") == "cancelled"
    beat = await mode.worker.queue.heartbeat("w1", "nonce", b"{}")
    assert (beat.commands, beat.owned, await mode.problems()) == ([b'["cancel","r1"]'], {}, [])


async def test_the_last_of_two_gateways_to_leave_cancels(mode: Mode) -> None:
    await mode.gateway.admit("r1", gateway="g1")
    assert await mode.gateway.queue.attach("r1", "g2") == "waiting"
    left = [await mode.gateway.queue.detach("r1", gateway) for gateway in ("g1", "g2")]
    assert (left, await mode.problems()) == (["left", "cancelled"], [])


async def test_a_repair_reads_the_tail_and_a_check_the_length(mode: Mode) -> None:
    await mode.gateway.admit("r1")
    await mode.worker.register("w1")
    delivery = await mode.worker.take_one("w1")
    await mode.worker.emit("w1", delivery, tokens(7))
    repaired = await mode.gateway.stream.repair("r1", "g1", delivery.journal, delivery.owner)
    assert (repaired.verdict, repaired.tail) == ("tail", tokens(7))
    (standing,) = await mode.gateway.stream.check(["r1"])
    assert standing.length == len(delivery.journal) + len(tokens(7))


async def test_work_of_a_late_worker_is_reaped_and_continued(mode: Mode) -> None:
    await mode.gateway.admit("r1")
    await mode.worker.register("w1")
    await mode.worker.emit("w1", await mode.worker.take_one("w1"), tokens(7))
    await mode.worker.lose("w1")
    assert (await mode.gateway.reap()).requeued == 1
    await mode.worker.register("w2")
    delivery = await mode.worker.take_one("w2")
    await mode.worker.emit("w2", delivery, tokens(8))
    assert (await mode.worker.ids("r1"), await mode.problems()) == ([7, 8], [])


@also_over_tls
async def test_the_bell_wakes_an_idle_worker(mode: Mode) -> None:
    """One of two, and the other hears nothing."""
    for worker in ("w1", "w2"):
        await mode.worker.register(worker)
        assert await mode.worker.take(worker) == []
    bells = [connect(RedisSettings(redis_url=mode.deployment.worker_url), blocking_s=20) for _ in range(2)]
    for bell in bells:
        await bell.ping()
    waiting = {
        asyncio.create_task(bell.blpop([keys.bell(MODEL, f"w{i + 1}")], timeout=20)) for i, bell in enumerate(bells)
    }
    await asyncio.sleep(0)
    await mode.gateway.admit("r1")
    heard, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    rung = await mode.gateway.scripts.client.zrange(keys.woken(MODEL), 0, -1)
    assert [keys.bell(MODEL, worker.decode()).encode() for worker in rung] == [task.result()[0] for task in heard]
    await end_tasks(*waiting)
    for bell in bells:
        await bell.aclose()


async def test_scripts_that_the_server_forgot_are_given_to_it_again(mode: Mode) -> None:
    await mode.gateway.admit("r1")
    await mode.everywhere("SCRIPT", "FLUSH")
    assert (await mode.gateway.admit("r1")).decision == "duplicate"


async def test_models_and_gateways_live_in_slots_of_their_own(mode: Mode) -> None:
    registry = Registry(mode.gateway.scripts)
    assert await registry.beat_gateway("g1", 1000, 1000) == []
    await mode.worker.register("w1")
    assert await registry.num_live_workers(MODEL) == 1
    await registry.forget_gateways(["g1"])
    assert await mode.gateway.scripts.client.zcard(keys.GATEWAYS) == 0


async def test_every_master_is_inspected_and_found_fit(mode: Mode) -> None:
    assert await inspect_server(mode.admin) == []
    assert [finding for finding in await inspect_server(mode.gateway.scripts.client) if finding.is_fatal] == []


@also_over_tls
def test_the_doctor_takes_the_url(deployment: Deployment) -> None:
    findings = doctor.examine(deployment.admin_url)
    assert [finding for finding in findings if finding.level == "FAIL"] == []
    assert len({finding.check for finding in findings}) > 8


@also_over_tls
async def test_work_goes_on_after_a_failover(mode: Mode) -> None:
    """The master dies in the middle of a stream: the same owner goes on, and its gateway hears it."""
    run_id = await Registry(mode.gateway.scripts).run_id()
    async with mode.followed("r1", check_ms=100) as subscription:
        await mode.gateway.admit("r1")
        await mode.worker.register("w1")
        delivery = await mode.worker.take_one("w1")
        await mode.worker.emit("w1", delivery, tokens(7))
        await mode.until_safe()
        mode.deployment.kill_master(home())
        await mode.until_answered(lambda: mode.worker.emit("w1", delivery, tokens(8)))
        await mode.until_answered(lambda: mode.worker.finish("w1", delivery))
        assert await ids_at_end(subscription) == [7, 8]
    assert await mode.until_answered(mode.problems) == []
    assert await Registry(mode.gateway.scripts).run_id() != run_id
