"""How classes and tenants share, on a real server: by weight, in tokens, charged as they are made."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from shared import keys
from tests.integration.queue_actors import MODEL, Actors, tokens


@pytest.fixture(autouse=True)
async def books_balance(actors: Actors):
    yield
    assert await actors.problems() == []


async def fill(actors: Actors, number: int, *classes: str, **ticket: Any) -> None:
    for service_class in classes:
        for i in range(number):
            await actors.admit(f"{service_class}-{i}", service_class=service_class, **ticket)


async def served(actors: Actors, number: int, *, num_tokens: int = 10) -> Counter[str]:
    """Tokens by the first word of the id, of the next `number` requests, one at a time."""
    await actors.register("w1")
    made: Counter[str] = Counter()
    for _ in range(number):
        (delivery,) = await actors.take("w1", slots=1)
        made[delivery.request_id.split("-")[0]] += num_tokens
        await actors.emit("w1", delivery, tokens(*range(num_tokens)), num_tokens=num_tokens)
        await actors.finish("w1", delivery)
    return made


async def test_classes_share_by_weight_and_none_starves(actors: Actors) -> None:
    await fill(actors, 30, "priority", "default", "flex")
    made = await served(actors, 26)
    assert {name: count // 10 for name, count in made.items()} == {"priority": 16, "default": 8, "flex": 2}


async def test_weights_of_classes_come_with_admissions(actors: Actors) -> None:
    await fill(actors, 12, "default", class_weight=1.0)
    await fill(actors, 12, "flex", class_weight=3.0)
    made = await served(actors, 12)
    assert (made["default"], made["flex"]) == (30, 90)


async def test_a_class_is_charged_for_its_answers(actors: Actors) -> None:
    await fill(actors, 3, "default", "flex", class_weight=1.0)
    await actors.register("w1")
    first, second = await actors.take("w1", slots=2)
    assert (first.request_id, second.request_id) == ("default-0", "flex-0")
    await actors.emit("w1", first, tokens(*range(50)), num_tokens=50)
    assert [d.request_id for d in await actors.take("w1", slots=2)] == ["flex-1", "flex-2"]


async def test_an_idle_class_leaves_its_share_to_the_others(actors: Actors) -> None:
    await fill(actors, 5, "flex")
    assert await served(actors, 5) == Counter(flex=50)


async def test_a_class_that_wakes_up_has_no_credit_and_no_debt(actors: Actors) -> None:
    await fill(actors, 20, "flex")
    await served(actors, 10)
    await fill(actors, 20, "priority")
    made = await served(actors, 9)
    assert (made["priority"], made["flex"]) == (80, 10)


async def test_tenants_share_by_the_weights_of_their_tickets(actors: Actors) -> None:
    for i in range(20):
        await actors.admit(f"a-{i}", tenant="a", tenant_weight=4.0)
        await actors.admit(f"b-{i}", tenant="b", tenant_weight=1.0)
    made = await served(actors, 20)
    assert (made["a"], made["b"]) == (160, 40)


async def test_long_answers_are_charged_as_they_are_made(actors: Actors) -> None:
    await actors.register("w1")
    for i in range(3):
        await actors.admit(f"long-{i}", tenant="long")
        await actors.admit(f"short-{i}", tenant="short")
    running = {d.request_id: d for d in await actors.take("w1", slots=2)}
    await actors.emit("w1", running["long-0"], tokens(*range(50)), num_tokens=50)
    assert [d.request_id for d in await actors.take("w1", slots=2)] == ["short-1", "short-2"]


async def test_a_tenant_that_wakes_up_starts_where_the_others_are(actors: Actors) -> None:
    for i in range(10):
        await actors.admit(f"a-{i}", tenant="a")
    await served(actors, 5)
    for i in range(10):
        await actors.admit(f"b-{i}", tenant="b")
    made = await served(actors, 4)
    assert (made["a"], made["b"]) == (20, 20)


async def test_a_retake_charges_nothing(actors: Actors) -> None:
    await actors.admit("r-1", prompt_tokens=100)
    await actors.register("w1")
    delivery = await actors.take_one("w1")
    before = await charges(actors)
    await actors.queue.release("r-1", delivery.owner)
    await actors.take_one("w1")
    assert await charges(actors) == before == (100.0, 25.0)


async def charges(actors: Actors) -> tuple[float, float]:
    """Virtual time of the tenant, and of its class."""
    tenant = await actors.scripts.client.hget(f"{keys.base(MODEL)}tenant:t", "vtime:default")
    return float(tenant or 0), (await actors.queue.counts())["vtime:default"]


async def test_position_counts_what_is_expected_to_be_taken_before(actors: Actors) -> None:
    for i in range(3):
        await actors.admit(f"a-{i}", tenant="a")
    accepted = await actors.admit("b-0", tenant="b")
    assert accepted.detail == ("3", "1")
    assert [await actors.queue.position(f"a-{i}") for i in range(3)] == [1, 2, 3]
    await actors.register("w1")
    await actors.take("w1", slots=1)
    assert await actors.queue.position("a-0") is None
    assert await actors.queue.position("a-1") == 1
