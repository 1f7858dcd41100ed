"""Who is woken for what waits: one worker a request, no wake-up lost; fsck holds the books at the end of each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from loadtest.valkey import Valkey
from shared import keys
from shared.config import RedisSettings
from shared.redis_client import Scripts, connect, end_tasks
from shared.request_queue import RequestQueue
from shared.token_stream import TokenStream
from tests.integration.queue_actors import MODEL, Actors, tokens
from tests.integration.queue_driver import AgelessScripts
from tests.integration.simulated_worker import StandIn
from worker import consumer
from worker.consumer import Consumer
from worker.engine_thread import EngineThread
from worker.holdings import Holdings
from worker.shares import Shares

LONG_MS = 1_000_000_000  # more than which counts as long ago, where the scripts are timeless


@pytest.fixture
def actors(scripts: Scripts) -> Actors:
    return timeless_actors(AgelessScripts(scripts.client))


def timeless_actors(scripts: Scripts) -> Actors:
    """A slow machine is not to be taken for workers that do not come."""
    queue = RequestQueue(scripts, MODEL, retention_s=60, lease_ms=60_000)
    return Actors(queue, TokenStream(scripts, MODEL, retention_s=60, lease_ms=60_000), scripts)


@pytest.fixture(autouse=True)
async def books_balance(actors: Actors):
    yield
    assert await actors.problems() == []


async def idle(actors: Actors, *workers: str) -> None:
    """They register, find nothing, and wait; the last of them asked last."""
    for worker in workers:
        await actors.register(worker)
        assert await actors.take(worker) == []
        await command(actors, "ZADD", keys.idle(MODEL), "XX", "INCR", workers.index(worker) - 500, worker)


async def command(actors: Actors, *words: str | int) -> Any:
    return await actors.scripts.client.execute_command(*words)  # type: ignore[attr-defined]


async def rung(actors: Actors) -> set[str]:
    bells = keys.bell(MODEL, "")
    return {key.decode().removeprefix(bells) async for key in actors.scripts.client.scan_iter(bells + "*")}


async def pause(actors: Actors) -> None:
    await actors.scripts.run("pause", keys.counts(MODEL), "ann", "")


async def resume(actors: Actors) -> None:
    await actors.scripts.run("resume", keys.counts(MODEL), "ann")


async def ago(actors: Actors, kind: Callable[[str], str], worker: str, ms: int) -> None:
    await command(actors, "ZADD", kind(MODEL), "XX", "INCR", -ms, worker)


async def until_blocked(actors: Actors) -> None:
    while not (await actors.scripts.client.info("clients"))["blocked_clients"]:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0)


async def test_one_request_wakes_one_worker(actors: Actors) -> None:
    await idle(actors, "w1", "w2", "w3")
    await actors.admit("r1")
    await actors.admit("r1")
    assert await rung(actors) == {"w3"}
    await actors.admit("r2")
    assert await rung(actors) == {"w2", "w3"}


async def test_a_ring_is_heard_before_and_after_it_is_listened_for(actors: Actors) -> None:
    await idle(actors, "w1")
    await actors.admit("r1")
    assert await rung(actors) == {"w1"}
    assert await actors.scripts.client.blpop([keys.bell(MODEL, "w1")], 5) is not None
    await actors.finish("w1", await actors.take_one("w1"))
    await idle(actors, "w1")
    listening = asyncio.create_task(actors.scripts.client.blpop([keys.bell(MODEL, "w1")], 5))
    await until_blocked(actors)
    await actors.admit("r2")
    assert await listening is not None


async def test_asking_answers_the_bell(actors: Actors) -> None:
    """Or a worker that asked by itself would be woken in vain."""
    await idle(actors, "w1")
    await actors.admit("r1")
    assert await command(actors, "PTTL", keys.bell(MODEL, "w1")) > 0, "the bell of a dead worker stays"
    await actors.take_one("w1")
    assert (await rung(actors), await actors.scripts.client.zcard(keys.woken(MODEL))) == (set(), 0)


async def test_a_worker_that_took_something_is_not_idle(actors: Actors) -> None:
    await idle(actors, "w1", "w2")
    await actors.admit("r1")
    await actors.take_one("w1")  # it asked by itself, before w2 came
    assert await actors.take("w2") == []
    await actors.admit("r2")
    await actors.admit("r3")
    assert await rung(actors) == {"w2"}


async def test_who_holds_least_is_woken_first(actors: Actors) -> None:
    await actors.register("busy")
    await actors.admit("r0")
    await actors.take("busy")
    await idle(actors, "w1", "busy")
    await actors.admit("r1")
    assert await rung(actors) == {"w1"}
    await actors.admit("r2")
    assert await rung(actors) == {"w1", "busy"}


async def test_a_worker_without_a_lease_is_passed_over(actors: Actors) -> None:
    await idle(actors, "w1", "dead")
    await actors.lose("dead")
    await actors.admit("r1")
    assert await rung(actors) == {"w1"}


async def test_a_worker_that_asks_no_more_is_passed_over(actors: Actors) -> None:
    await idle(actors, "w1")
    await ago(actors, keys.idle, "w1", LONG_MS)
    await actors.admit("r1")
    assert await rung(actors) == set()


async def test_pausing_wakes_nobody_and_resuming_as_many_as_wait(actors: Actors) -> None:
    await pause(actors)
    for i in range(3):
        await actors.admit(f"r{i}")
    await idle(actors, "w1", "w2", "w3", "w4")
    await actors.admit("r3")
    await actors.queue.cancel("r3")
    assert await rung(actors) == set()
    await resume(actors)
    assert await rung(actors) == {"w2", "w3", "w4"}


async def unregister(actors: Actors, worker: str) -> None:
    await actors.queue.unregister(worker, "nonce", page=2)


async def die(actors: Actors, worker: str) -> None:
    await actors.lose(worker)
    while (await actors.queue.reap((), max_crashes=3, page=2)).has_more:
        pass


@pytest.mark.parametrize("leave", [unregister, die])
async def test_what_goes_back_wakes_as_many(actors: Actors, leave: Callable[[Actors, str], Awaitable[None]]) -> None:
    await actors.register("w0")
    for i in range(3):
        await actors.admit(f"r{i}")
    await actors.take("w0")
    await idle(actors, "w1", "w2", "w3", "w4")
    await leave(actors, "w0")
    assert await rung(actors) == {"w2", "w3", "w4"}


async def test_what_is_released_wakes_one(actors: Actors) -> None:
    await actors.register("w0")
    await actors.admit("r1")
    delivery = await actors.take_one("w0")
    await idle(actors, "w1", "w2")
    await actors.queue.release("r1", delivery.owner)
    assert await rung(actors) == {"w2"}


async def test_what_a_witness_puts_back_wakes_one(actors: Actors) -> None:
    await actors.register("w0")
    await actors.admit("r1")
    delivery = await actors.take_one("w0")
    await idle(actors, "w1", "w2")
    repaired = await actors.stream.repair("r1", "g1", delivery.journal + tokens(7), "an older owner", send_prefix=True)
    assert (repaired.verdict, await rung(actors)) == ("requeued", {"w2"})


@pytest.mark.parametrize("leave", [unregister, die])
async def test_who_is_gone_passes_its_ring_on(actors: Actors, leave: Callable[[Actors, str], Awaitable[None]]) -> None:
    await idle(actors, "w1", "w2", "w3")
    await actors.admit("r1")
    await leave(actors, "w3")
    assert await rung(actors) == {"w2"}
    await leave(actors, "w1")
    await actors.admit("r2")
    assert await rung(actors) == {"w2"}


async def test_what_a_woken_worker_has_no_room_for_wakes_another(actors: Actors) -> None:
    for worker in ("w1", "w2"):
        await actors.register(worker)
        await actors.admit(f"r-{worker}")
        await actors.take(worker)
    await idle(actors, "w1", "w2")
    await actors.admit("large", prompt_tokens=500)
    assert await actors.take("w2", room=10) == []
    assert await rung(actors) == {"w1"}


async def test_whom_a_ring_does_not_bring_is_replaced(actors: Actors) -> None:
    await idle(actors, "w1", "w2")
    await actors.admit("r1")
    await actors.queue.heartbeat("w2", "nonce", b"{}")
    assert await rung(actors) == {"w2"}
    await ago(actors, keys.woken, "w2", LONG_MS + 1)
    await actors.queue.heartbeat("w2", "nonce", b"{}")
    assert await rung(actors) == {"w1", "w2"}


async def test_a_drained_worker_is_rung_no_more(actors: Actors) -> None:
    await idle(actors, "w1")
    await actors.scripts.run("drain", keys.counts(MODEL), "w1", "", "ann")
    await actors.admit("r1")
    await actors.queue.cancel("r1")
    assert (await rung(actors), await actors.take("w1")) == (set(), [])
    await actors.admit("r2")
    assert await rung(actors) == set()


async def test_an_idle_worker_is_woken_by_an_admission(
    actors: Actors, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real consumer, which would ask by itself after a minute only."""
    monkeypatch.setattr(consumer, "BELL_S", 60.0)
    bell = connect(RedisSettings(redis_url=valkey.url), blocking_s=60)
    backend = StandIn(cast(Any, None))
    engine = EngineThread(lambda: backend, lambda *_: None)
    engine._load = backend.load()
    queue, delivered = actors.queue, asyncio.Queue[str]()
    share = Shares(engine).open()
    waiting = Consumer(queue, bell, share, Holdings(queue, share, lambda: None), ("w1", "nonce"), lambda *_: None)
    monkeypatch.setattr(waiting, "_hand_over", lambda delivery: delivered.put_nowait(delivery.request_id))
    await actors.register("w1")
    task = asyncio.create_task(waiting.run())
    await until_blocked(actors)
    await actors.admit("r1")
    assert await delivered.get() == "r1"
    await end_tasks(task)
    await bell.aclose()


@pytest.mark.parametrize("end", ["finish", "release", "unregister", "reap", "cancel"])
async def test_a_worker_that_runs_nothing_of_a_stream_is_not_named_there(actors: Actors, end: str) -> None:
    """Streams of busy tenants never end, and workers come and go."""
    await actors.register("w1")
    await actors.admit("r1")
    await actors.admit("waits")
    (delivery,) = await actors.take("w1", slots=1)
    await actors.emit("w1", delivery, tokens(7))
    if end == "finish":
        await actors.finish("w1", delivery)
    elif end == "release":
        await actors.queue.release("r1", delivery.owner)
    elif end == "cancel":
        await actors.queue.cancel("r1")
    else:
        await (unregister if end == "unregister" else die)(actors, "w1")
    stream = keys.queue(MODEL, "default", "t")
    assert (await actors.scripts.client.xlen(stream), await actors.scripts.client.xinfo_consumers(stream, "w")) == (
        1,
        [],
    )
