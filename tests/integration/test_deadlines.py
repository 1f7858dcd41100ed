"""Deadlines on a real server: at the door, while waiting, while the prompt is computed, and after a return."""

from __future__ import annotations

import pytest

from shared import keys
from tests.integration.queue_actors import MODEL, Actors, tokens


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
