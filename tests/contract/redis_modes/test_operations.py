"""What an operator sees and does, in every mode, with the rights that a gateway has."""

from __future__ import annotations

import pytest

from shared.config import RedisSettings
from shared.operations.desk import Desk
from shared.registry import Registry
from tests.contract.redis_modes.conftest import Mode
from tests.integration.queue_actors import MODEL, NO_BOUNDS, tokens
from tests.integration.test_operations import admit
from tests.integration.test_protocol_doc import CARD


@pytest.fixture
async def desk(mode: Mode) -> Desk:
    await Registry(mode.gateway.scripts).publish_model(CARD, b"{}")
    return Desk(mode.gateway.scripts, RedisSettings(retention_s=60), NO_BOUNDS)


async def bury(mode: Mode, request_id: str) -> None:
    """A dead letter of that id."""
    await admit(mode.gateway, request_id)
    await mode.worker.register("killed")
    await mode.worker.take_one("killed")
    await mode.worker.lose("killed")
    assert (await mode.gateway.reap(max_crashes=0)).dead == 1


async def test_a_paused_model_is_served_when_it_is_resumed(mode: Mode, desk: Desk) -> None:
    (paused,) = await desk.pause("tiny", by="ann", why="bad weights")
    await admit(mode.gateway, "r1")
    await mode.worker.register("w1")
    assert (paused.is_new, await mode.worker.take("w1")) == (True, [])
    assert await desk.resume("tiny", by="bob") == [MODEL]
    await mode.worker.finish("w1", await mode.worker.take_one("w1"))
    assert (await mode.gateway.state("r1"), await mode.problems()) == ("finished", [])


async def test_a_worker_is_told_to_drain_and_shown_so(mode: Mode, desk: Desk) -> None:
    await mode.worker.register("w1")
    assert await desk.drain("w1", by="ann") == MODEL
    assert [row.state for row in (await desk.workers())[MODEL]] == ["draining"]
    assert (await mode.worker.queue.heartbeat("w1", "nonce", b"{}")).commands == [b'["drain"]']


async def test_an_operator_cancels_what_runs(mode: Mode, desk: Desk) -> None:
    await admit(mode.gateway, "r1")
    await mode.worker.register("w1")
    await mode.worker.take_one("w1")
    assert [await desk.cancel("r1", by="ann") for _ in range(2)] == ["cancelled"] * 2
    assert ((await desk.timeline("r1")).fields["ended_by"], await mode.problems()) == ("ann", [])


async def test_a_dead_letter_is_shown_and_retried_once(mode: Mode, desk: Desk) -> None:
    await bury(mode, "poison")
    letter = await desk.dead_letter("poison")
    assert (letter.worker, (await desk.asked(letter)).prompt_ids) == ("killed", (1, 2, 3))
    new_id = await desk.retry("poison", by="ann")
    await mode.worker.register("w1")
    delivery = await mode.worker.take_one("w1")
    await mode.worker.finish("w1", delivery)
    assert (delivery.request_id, await desk.dead_letters(), await mode.problems()) == (new_id, [], [])


async def test_a_dropped_letter_is_gone(mode: Mode, desk: Desk) -> None:
    await bury(mode, "poison")
    await desk.drop("poison", by="ann", why="known")
    assert (await desk.dead_letters(), await mode.problems()) == ([], [])


async def test_overview_and_timeline_tell_what_happened(mode: Mode, desk: Desk) -> None:
    for request_id in ("r1", "r2"):
        await admit(mode.gateway, request_id)
    await mode.worker.register("w1")
    delivery, *_ = await mode.worker.take("w1", slots=1)
    await mode.worker.emit("w1", delivery, tokens(7))
    (told,) = await desk.overview()
    assert [(flow.tenant, flow.waiting, flow.running) for flow in told.flows] == [("t/1", 1, 1)]
    assert (told.num_live_workers, (await desk.held("w1"))[1].keys()) == (1, {delivery.request_id})
    steps = (await desk.timeline(delivery.request_id)).steps
    assert [(step.event, step.tokens) for step in steps] == [("queued", 0), ("taken", 1)]


async def test_the_wanted_workers_are_read(mode: Mode, desk: Desk) -> None:
    await admit(mode.gateway, "r1")
    await mode.worker.register("w1")
    (told,) = await desk.wanted_workers("tiny")
    (row,) = told.revisions
    assert (told.wanted_workers, row.waiting, row.live_workers) == (1, 1, 1)
