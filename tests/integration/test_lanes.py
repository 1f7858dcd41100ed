"""Prefix locality: who served a prefix lately goes first for what begins so, for a short time; nothing hangs on it."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.http.options import AdmissionOptions
from loadtest.valkey import Valkey
from shared import keys
from shared.redis_client import Scripts
from shared.request_queue import Delivery, RequestQueue
from shared.schemas import Request, SamplingParams
from shared.text.prefixes import Prefixes
from shared.token_stream import TokenStream
from tests.integration.queue_actors import MODEL, Actors
from tests.integration.test_bells import idle, rung
from tests.integration.test_gateway import gateway_of

LONG_MS = 60_000
# A slow machine is not to be taken for workers that do not come, nor for requests that came long after one another.
STEADY = {
    "local YOUNG_MS = 100": "local YOUNG_MS = 0",
    "local OVERTAKE_MS = 500": "local OVERTAKE_MS = 1e9",
    "SEEN_MOST, SEEN_MS = 50000": "SEEN_MOST, SEEN_MS = 2",
}


def steady(text: str) -> str:
    for old, new in STEADY.items():
        text = text.replace(old, new)
    return text


class SteadyScripts(Scripts):
    def text(self, name: str) -> str:
        return steady(super().text(name))


@pytest.fixture
def actors(scripts: Scripts) -> Actors:
    return steady_actors(SteadyScripts(scripts.client))


def steady_actors(scripts: Scripts) -> Actors:
    queue = RequestQueue(scripts, MODEL, retention_s=60, lease_ms=LONG_MS)
    return Actors(queue, TokenStream(scripts, MODEL, retention_s=60, lease_ms=LONG_MS), scripts)


@pytest.fixture(autouse=True)
async def books_balance(actors: Actors):
    yield
    assert await actors.problems() == []


async def ask(actors: Actors, request_id: str, *asked: str, lane_ms: int = LONG_MS, **ticket: Any) -> None:
    """With these hashes of its prompt's beginnings, the longest first."""
    admitted = await actors.admit(request_id, lane_ms=lane_ms, prefixes=Prefixes(asked, asked), **ticket)
    assert admitted.decision == "accepted"


async def serve(actors: Actors, worker: str, *asked: str) -> None:
    """A request with these prefixes, by this worker, to its end."""
    await ask(actors, f"of-{worker}-{'-'.join(asked)}", *asked, lane_ms=0)
    await actors.finish(worker, await actors.take_one(worker))


async def fleet(actors: Actors, *workers: str) -> None:
    for worker in workers:
        await actors.register(worker)


async def pass_since_the_first_waits(actors: Actors, ms: int) -> None:
    """Until so much of the server's time has passed since the first entry of the tenant's stream came."""
    client: Any = actors.scripts.client
    (entry, *_) = await client.xrange(keys.queue(MODEL, "default", "t"), count=1)
    now_ms = came_ms = int(entry[0].split(b"-")[0])
    while now_ms <= came_ms + ms:
        seconds, micros = await client.time()
        now_ms = seconds * 1000 + micros // 1000


def ids(deliveries: list[Delivery]) -> list[str]:
    return [delivery.request_id for delivery in deliveries]


async def test_who_served_a_prefix_goes_first_and_others_take_what_is_behind_it(actors: Actors) -> None:
    await fleet(actors, "w1", "w2")
    await serve(actors, "w1", "p")
    await ask(actors, "r1", "p")
    await actors.admit("r2")
    assert ids(await actors.take("w2")) == ["r2"]
    assert ids(await actors.take("w1")) == ["r1"]


async def test_the_longest_prefix_says_who(actors: Actors) -> None:
    await fleet(actors, "w1", "w2", "w3")
    await serve(actors, "w1", "long", "short")
    await serve(actors, "w2", "short")
    await ask(actors, "r1", "long", "short")
    await ask(actors, "r2", "longer", "short")
    assert ids(await actors.take("w3")) == []
    assert (ids(await actors.take("w2")), ids(await actors.take("w1"))) == (["r2"], ["r1"])


async def test_others_take_it_when_its_time_is_over_and_it_is_counted(actors: Actors) -> None:
    await fleet(actors, "w1", "w2")
    await serve(actors, "w1", "p")
    await ask(actors, "r1", "p", lane_ms=20)
    await pass_since_the_first_waits(actors, 20)
    assert ids(await actors.take("w2")) == ["r1"]
    assert await actors.take("w1") == []
    counts = await actors.queue.counts()
    assert (counts.get("lane_hits", 0), counts["lane_misses"]) == (0, 1)


async def test_its_own_goes_before_who_is_in_turn_also_when_its_time_is_over(actors: Actors) -> None:
    """So a backlog is served with locality, and nobody waits for it."""
    await fleet(actors, "w1", "w2")
    await serve(actors, "w1", "p")
    await actors.admit("r1")
    await ask(actors, "r2", "p", lane_ms=1)
    assert ids(await actors.take("w1", slots=1)) == ["r2"]
    assert ids(await actors.take("w1", slots=1)) == ["r1"]


async def test_nobody_is_overtaken_by_what_came_long_after(actors: Actors) -> None:
    await fleet(actors, "w1", "w2")
    await serve(actors, "w1", "p")
    await actors.admit("r1")
    await pass_since_the_first_waits(actors, 500)
    await ask(actors, "r2", "p")
    impatient = steady_actors(Scripts(actors.scripts.client))
    assert ids(await impatient.take("w1", slots=1)) == ["r1"]


async def test_nothing_is_kept_for_who_is_dead_or_leaving(actors: Actors) -> None:
    await fleet(actors, "w1", "w2", "w3")
    await serve(actors, "w1", "p")
    await serve(actors, "w2", "q")
    await actors.lose("w1")
    await actors.scripts.run("drain", keys.counts(MODEL), "w2", "", "ann")
    await ask(actors, "r1", "p")
    await ask(actors, "r2", "q")
    assert ids(await actors.take("w3")) == ["r1", "r2"]


async def test_what_its_worker_took_out_of_turn_goes_on_elsewhere_when_it_dies(actors: Actors) -> None:
    await fleet(actors, "w1", "w2")
    await serve(actors, "w1", "p")
    await actors.admit("r1")
    await ask(actors, "r2", "p")
    assert ids(await actors.take("w1", slots=1)) == ["r2"]
    assert await actors.problems() == []
    await actors.lose("w1")
    assert (await actors.reap()).requeued == 1
    assert ids(await actors.take("w2")) == ["r2", "r1"]
    assert not [key async for key in actors.scripts.client.scan_iter(f"{keys.base(MODEL)}q:lane:*")]


async def test_a_hot_prefix_spreads(actors: Actors) -> None:
    """All at once, and all begin as what one of four workers has served."""
    await fleet(actors, "w1", "w2", "w3", "w4")
    await serve(actors, "w1", "p")
    for number in range(40):
        await ask(actors, f"r{number}", "p")
    taken = [len(await actors.take(worker, slots=40)) for worker in ("w2", "w1")]
    assert taken == [26, 14], "w1 is to get its part, ten, a quarter more and one"


async def test_a_full_worker_is_passed_over_at_the_door(actors: Actors) -> None:
    await fleet(actors, "w1", "w2", "w3", "w4")
    await serve(actors, "w1", "p")
    for number in range(4):
        await actors.admit(f"busy{number}")
    assert len(await actors.take("w1")) == 4
    await ask(actors, "r1", "p")
    assert ids(await actors.take("w2")) == ["r1"]


async def test_the_preferred_worker_is_rung_though_another_asked_last(actors: Actors) -> None:
    await fleet(actors, "w1", "w2")
    await serve(actors, "w1", "p")
    await idle(actors, "w1", "w2")
    await ask(actors, "r1", "p")
    assert await rung(actors) == {"w1"}
    await actors.admit("r2")
    assert await rung(actors) == {"w1", "w2"}


async def test_a_worker_that_cannot_take_what_is_kept_for_it_wakes_another(actors: Actors) -> None:
    await fleet(actors, "w1", "w2")
    await serve(actors, "w1", "p")
    await idle(actors, "w1", "w2")
    await actors.admit("big", prompt_tokens=100)
    assert await rung(actors) == {"w2"}
    assert ids(await actors.take("w1")) == ["big"]
    await ask(actors, "r1", "p", prompt_tokens=5000)
    assert await actors.take("w1") == []
    assert await rung(actors) == {"w2"}


async def test_order_within_a_tenant_and_turns_among_tenants_are_kept(actors: Actors) -> None:
    """Four of A and four of B, all of them kept for the one that takes: by virtual time, each tenant's in order."""
    await fleet(actors, "w1", "w2")
    await serve(actors, "w1", "p")
    for number in range(4):
        for tenant in "AB":
            await ask(actors, f"{tenant}{number}", "p", tenant=tenant)
    taken = [request_id for _ in range(8) for request_id in ids(await actors.take("w1", slots=1))]
    assert [name for name in taken if name[0] == "A"] == ["A0", "A1", "A2", "A3"]
    assert all({first[0], second[0]} == {"A", "B"} for first, second in zip(taken[::2], taken[1::2], strict=True))


async def test_one_tenants_lane_does_not_hold_another_tenant_up(actors: Actors) -> None:
    await fleet(actors, "w1", "w2")
    await serve(actors, "w1", "p")
    await ask(actors, "r1", "p", tenant="A")
    await actors.admit("r2", tenant="B")
    assert ids(await actors.take("w2")) == ["r2"]


async def test_without_time_nobody_is_preferred(actors: Actors) -> None:
    await fleet(actors, "w1", "w2")
    await serve(actors, "w1", "p")
    await ask(actors, "r1", "p", lane_ms=0)
    assert ids(await actors.take("w2")) == ["r1"]


@pytest.mark.parametrize(
    "overrides", [{}, {"lane_ms": 0}, {"prefix_cache": "off"}, {"prefix_cache": "shared"}], ids=str
)
async def test_settings_say_whether_a_request_is_kept(
    actors: Actors, valkey: Valkey, overrides: dict[str, Any]
) -> None:
    await fleet(actors, "w1", "w2")
    async with gateway_of(valkey.url, **{"lane_ms": 5000, **overrides}) as gateway:
        for request_id, tenant in (("r1", "t"), ("r2", "t"), ("r3", "u")):
            params = SamplingParams(max_tokens=8, seed=1)
            request = Request(request_id=request_id, model=MODEL, prompt_ids=(7,) * 200, params=params, tenant=tenant)
            await gateway.dispatcher.submit(request, AdmissionOptions(start_deadline_ms=60_000))
            if request_id == "r1":
                await actors.finish("w1", await actors.take_one("w1"))
    client: Any = actors.scripts.client
    kept = [await client.zscore(keys.lane(MODEL, "w1"), request_id) for request_id in ("r2", "r3")]
    is_on = overrides.get("lane_ms") != 0 and overrides.get("prefix_cache") != "off"
    assert [score is not None for score in kept] == [is_on, overrides.get("prefix_cache") == "shared"]
    assert len(await actors.take("w1")) == 2


async def test_what_is_remembered_is_bounded_and_expires(actors: Actors) -> None:
    await fleet(actors, "w1", "w2")
    for prefix in "abcde":
        await serve(actors, "w1", prefix)
    client: Any = actors.scripts.client
    halves = (keys.seen(MODEL), keys.seen_before(MODEL))
    assert {name.decode() for key in halves for name in await client.hkeys(key)} == {"c", "d", "e"}
    assert min([await client.pttl(key) for key in halves]) > 0
    await ask(actors, "r1", "d")
    assert await actors.take("w2") == []


async def test_one_that_overtakes_and_does_not_fit_stands_in_nobodys_way(actors: Actors) -> None:
    await fleet(actors, "w1", "w2")
    await serve(actors, "w1", "p")
    await actors.admit("busy")
    await actors.take_one("w1")
    await actors.admit("r1")
    await ask(actors, "r2", "p", prompt_tokens=5000)
    assert ids(await actors.take("w1")) == ["r1"]
    assert await actors.scripts.client.hget(keys.request(MODEL, "r2"), "passed_at") is not None, "then it is in turn"
