"""The operator's desk on the real server: pause, drain, dead letters, timeline, overview; fsck holds the books."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from shared import keys
from shared.config import RedisSettings
from shared.errors import ModelNotFound, Overloaded, RequestNotFound, WorkerNotFound
from shared.operations.desk import Desk
from shared.registry import Registry
from shared.request_queue import Bounds, Ticket
from shared.schemas import EndFrame, Request, SamplingParams, decode_request, encode_request
from tests.integration.queue_actors import MODEL, NO_BOUNDS, Actors, tokens
from tests.integration.test_protocol_doc import CARD


@pytest.fixture
async def desk(actors: Actors) -> Desk:
    await Registry(actors.scripts).publish_model(CARD, b"{}")
    return Desk(actors.scripts, RedisSettings(retention_s=60), NO_BOUNDS)


@pytest.fixture(autouse=True)
async def books_balance(actors: Actors):
    yield
    assert await actors.problems() == []


def body_of(request_id: str) -> bytes:
    params = SamplingParams(max_tokens=8, seed=1)
    return encode_request(
        Request(request_id=request_id, model=MODEL, prompt_ids=(1, 2, 3), params=params, tenant="t/1")
    )


async def admit(actors: Actors, request_id: str, **ticket: Any) -> None:
    values = Ticket(request_id, "default", "t/1", prompt_tokens=3, max_tokens=8, n=1, tenant_weight=2.0)
    await actors.queue.admit(replace(values, **ticket), body_of(request_id), NO_BOUNDS, gateway="g1")


async def kill(actors: Actors, request_id: str) -> None:
    """A dead letter of that id."""
    await actors.register("killed")
    await actors.take_one("killed")
    await actors.lose("killed")
    await actors.reap(max_crashes=0)
    assert await actors.state(request_id) == "dead"


async def audited(actors: Actors) -> list[tuple[str, str, str]]:
    """What operators did, newest first: event, id, who."""
    raw = await actors.scripts.client.xrevrange(keys.events(MODEL), "+", "-", 100)
    told = [{name.decode(): value.decode() for name, value in fields.items()} for _, fields in raw]
    return [(entry["event"], entry["id"], entry["by"]) for entry in told if "by" in entry]


async def test_a_paused_model_is_admitted_to_and_not_taken_until_it_is_resumed(actors: Actors, desk: Desk) -> None:
    await actors.register("w1")
    await desk.pause("tiny", by="ann", why="bad weights")
    await admit(actors, "r1")
    assert await actors.take("w1") == []
    assert await desk.resume("tiny", by="bob") == [MODEL]
    assert (await actors.take_one("w1")).request_id == "r1"


async def test_resume_wakes_a_worker_and_pausing_wakes_none(actors: Actors, desk: Desk) -> None:
    await desk.pause("tiny", by="ann", why="")
    await actors.register("w1")
    assert (await actors.queue.take("w1", "nonce", slots=1, room=10)).num_waiting == 0
    await admit(actors, "r1")
    assert await actors.scripts.client.exists(keys.bell(MODEL, "w1")) == 0
    await desk.resume("tiny", by="ann")
    assert await actors.scripts.client.blpop([keys.bell(MODEL, "w1")], 5) is not None


async def test_what_runs_goes_on_in_a_paused_model(actors: Actors, desk: Desk) -> None:
    await admit(actors, "r1")
    await actors.register("w1")
    delivery = await actors.take_one("w1")
    await desk.pause("tiny", by="ann", why="")
    await actors.emit("w1", delivery, tokens(7))
    await actors.finish("w1", delivery)
    assert await actors.state("r1") == "finished"


async def test_a_deadline_passes_in_a_paused_model(actors: Actors, desk: Desk) -> None:
    await desk.pause("tiny", by="ann", why="")
    await admit(actors, "r1", start_deadline_ms=1)
    while await actors.state("r1") == "waiting":
        await actors.reap()
    assert await actors.state("r1") == "expired"


async def test_the_first_who_paused_stays_and_each_action_is_audited_once(actors: Actors, desk: Desk) -> None:
    (first,) = await desk.pause("tiny", by="ann", why="bad weights")
    (again,) = await desk.pause(MODEL, by="bob", why="other")
    assert (first.is_new, again.is_new, again.paused) == (True, False, first.paused)
    assert (again.paused.by, again.paused.why) == ("ann", "bad weights")
    assert [await desk.resume("tiny", by="bob") for _ in range(2)] == [[MODEL], []]
    assert await audited(actors) == [("resumed", f"{{{MODEL}}}", "bob"), ("paused", f"{{{MODEL}}}", "ann")]


async def test_a_drained_worker_is_told_shown_and_audited(actors: Actors, desk: Desk) -> None:
    await actors.register("w1")
    assert await desk.drain("w1", by="ann") == MODEL
    await desk.drain("w1", by="ann", is_now=True)
    assert (await actors.queue.heartbeat("w1", "nonce", b"{}")).commands == [b'["drain"]', b'["drain","now"]']
    (row,) = (await desk.workers())[MODEL]
    assert (row.state, row.info) == ("draining", None)
    assert await audited(actors) == [("drain", "w1", "ann")] * 2
    with pytest.raises(WorkerNotFound):
        await desk.drain("w2", by="ann")


async def test_cancel_says_who_and_repeats_harmlessly(actors: Actors, desk: Desk) -> None:
    await admit(actors, "r1")
    assert [await desk.cancel("r1", by="ann") for _ in range(2)] == ["cancelled"] * 2
    assert await audited(actors) == [("cancel", "r1", "ann")]
    assert (await desk.timeline("r1")).fields["ended_by"] == "ann"
    with pytest.raises(RequestNotFound):
        await desk.cancel("no/such}id", by="ann")


async def test_a_dead_letter_runs_again_under_one_new_id(actors: Actors, desk: Desk) -> None:
    await admit(actors, "poison", view="chat")
    await kill(actors, "poison")
    letter = await desk.dead_letter("poison")
    asked = await desk.asked(letter)
    assert (letter.worker, letter.crashes, letter.tenant, asked.prompt_ids) == ("killed", 1, "t/1", (1, 2, 3))
    new_id = await desk.retry("poison", by="ann")
    await actors.register("w1")
    delivery = await actors.take_one("w1")
    assert delivery.request_id == new_id
    assert decode_request(delivery.body) == msgspec.structs.replace(asked, request_id=new_id)
    fields = (await desk.timeline(new_id)).fields
    assert (fields["detached"], fields["tenant"], fields["view"]) == ("1", "t%2F1", "chat")
    assert float(await actors.scripts.client.hget(keys.tenant(MODEL, "t/1"), "weight") or 0) == 2.0
    await actors.finish("w1", delivery)
    assert await desk.dead_letters() == []
    assert await audited(actors) == [("retried", "poison", "ann")]


async def test_two_operators_who_retry_at_once_make_one_run(actors: Actors, desk: Desk) -> None:
    await admit(actors, "poison")
    await kill(actors, "poison")
    answers = await asyncio.gather(*(desk.retry("poison", by=by) for by in "ab"), return_exceptions=True)
    assert Counter(isinstance(answer, str) for answer in answers)[True] >= 1
    assert (await actors.queue.counts())["waiting"] == 1


async def test_a_retry_the_queue_has_no_room_for_keeps_the_letter(actors: Actors, desk: Desk) -> None:
    await admit(actors, "poison")
    await kill(actors, "poison")
    await admit(actors, "r1")
    with pytest.raises(Overloaded, match="full 2 of 1"):
        await replace(desk, bounds=Bounds(1, 0, 0)).retry("poison", by="ann")
    assert [letter.request_id for letter in await desk.dead_letters("tiny")] == ["poison"]


async def dead_letters(actors: Actors, *request_ids: str) -> None:
    for request_id in request_ids:
        await admit(actors, request_id)
        await kill(actors, request_id)


async def test_all_letters_run_again_the_oldest_first_until_there_is_no_room(actors: Actors, desk: Desk) -> None:
    await dead_letters(actors, "first", "second", "third")
    narrow = replace(desk, bounds=Bounds(2, 0, 0))
    done, left = await narrow.retry_all("tiny", by="ann")
    assert (list(done.retried), done.failed, left) == (["first", "second"], {}, 1)
    assert "full 3 of 2" in done.stopped
    assert [letter.request_id for letter in await desk.dead_letters()] == ["third"]
    assert await audited(actors) == [("retried", "second", "ann"), ("retried", "first", "ann")]
    assert (await desk.retry_all("", by="ann"))[1] == 0
    assert (await actors.queue.counts())["waiting"] == 3


async def test_all_letters_retried_twice_at_once_are_one_run_each(actors: Actors, desk: Desk) -> None:
    await dead_letters(actors, "first", "second")
    await asyncio.gather(*(desk.retry_all("tiny", by=by) for by in "ab"))
    assert (await actors.queue.counts())["waiting"] == 2
    assert await desk.dead_letters() == []


async def test_a_letter_without_its_body_does_not_hinder_the_others(actors: Actors, desk: Desk) -> None:
    await dead_letters(actors, "first", "second")
    client: Any = actors.scripts.client
    await client.delete(keys.body(MODEL, "first"))
    done, left = await desk.retry_all("tiny", by="ann")
    assert (list(done.retried), list(done.failed), left) == (["second"], ["first"], 1)
    await client.flushall()


async def test_a_dropped_letter_is_gone_with_its_body(actors: Actors, desk: Desk) -> None:
    await admit(actors, "poison")
    await kill(actors, "poison")
    await desk.drop("poison", by="ann", why="known bug")
    assert await actors.scripts.client.exists(keys.body(MODEL, "poison"), keys.dead(MODEL)) == 1  # the empty stream
    for act in (desk.drop("poison", by="ann", why=""), desk.retry("poison", by="ann"), desk.dead_letter("poison")):
        with pytest.raises(RequestNotFound):
            await act
    assert await audited(actors) == [("dropped", "poison", "ann")]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (("DEL", keys.dead(MODEL)), "a dead letter without its entry"),
        (("DEL", keys.body(MODEL, "poison")), "whose body is gone"),
        (("HDEL", keys.request(MODEL, "poison"), "letter"), "dead but keeps its body"),
    ],
)
async def test_fsck_finds_a_damaged_letter(actors: Actors, desk: Desk, damage: tuple[str, ...], words: str) -> None:
    client: Any = actors.scripts.client
    await admit(actors, "poison")
    await kill(actors, "poison")
    await client.execute_command(*damage)
    assert [problem for problem in await actors.problems() if words in problem]
    await client.flushall()


async def test_a_letter_outlives_the_retention_and_not_a_day(actors: Actors, desk: Desk) -> None:
    client: Any = actors.scripts.client
    await admit(actors, "poison")
    await kill(actors, "poison")
    kept = [await client.ttl(key(MODEL, "poison")) for key in (keys.request, keys.journal, keys.body)]
    assert all(86_000 < seconds <= 86_400 for seconds in kept)
    await client.delete(keys.dead(MODEL), keys.request(MODEL, "poison"))
    await client.xadd(keys.dead(MODEL), {"id": "old"}, id="1-0")
    await actors.reap()
    assert await client.xlen(keys.dead(MODEL)) == 0


async def test_the_oldest_letters_make_room_bodies_and_all(actors: Actors, desk: Desk) -> None:
    client: Any = actors.scripts.client
    await admit(actors, "oldest")
    await kill(actors, "oldest")
    for _ in range(999):
        await client.xadd(keys.dead(MODEL), {"id": "filler"})
    await admit(actors, "poison")
    await kill(actors, "poison")
    assert await client.xlen(keys.dead(MODEL)) == 1000
    assert await client.exists(keys.body(MODEL, "oldest"), keys.body(MODEL, "poison")) == 1


async def test_a_timeline_tells_the_whole_way(actors: Actors, desk: Desk) -> None:
    await admit(actors, "r1")
    await actors.register("w1")
    await actors.register("w2")
    delivery = await actors.take_one("w1")
    await actors.emit("w1", delivery, tokens(7))
    await actors.queue.release("r1", delivery.owner)
    delivery = await actors.take_one("w2")
    await actors.emit("w2", delivery, tokens(8, 9), num_tokens=2)
    await actors.finish("w2", delivery)
    told = await desk.timeline("r1")
    assert [(step.event, step.tokens) for step in told.steps] == [
        ("queued", 0), ("taken", 1), ("released", 0), ("taken", 2), ("finished", 0)
    ]  # fmt: skip
    assert (told.workers, [step.attempt for step in told.steps if step.attempt]) == (["w1", "w2"], [1, 2])
    assert sum(told.time_in.values()) == told.steps[-1].at_ms - told.steps[0].at_ms
    assert isinstance((await actors.frames("r1"))[-1], EndFrame)


async def test_the_overview_adds_up(actors: Actors, desk: Desk) -> None:
    await actors.register("w1")
    await admit(actors, "running")
    delivery = await actors.take_one("w1")
    await admit(actors, "back")
    (back,) = await actors.take("w1")
    await actors.queue.release("back", back.owner)
    for number in range(3):
        await actors.admit(f"r{number}", tenant="other", service_class="flex")
    await desk.pause("tiny", by="ann", why="look")
    (told,) = await desk.overview()
    flows = {(flow.service_class, flow.tenant): (flow.waiting, flow.running) for flow in told.flows}
    assert flows == {("default", "t/1"): (0, 1), ("flex", "other"): (3, 0)}
    assert (told.retry_waiting, told.counts["waiting"], told.counts["running"]) == (1, 4, 1)
    assert told.paused is not None and (told.paused.by, told.num_live_workers) == ("ann", 1)
    assert told.oldest_age_ms >= 0 and delivery.request_id == "running"


async def test_what_is_not_there_is_said(desk: Desk) -> None:
    with pytest.raises(ModelNotFound, match=MODEL):
        await desk.pause("unknown", by="ann", why="")
    with pytest.raises(RequestNotFound):
        await desk.timeline("unknown")
