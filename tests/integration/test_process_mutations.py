"""Each defence of gateways and workers, and a schedule that fails without it. Of the scripts: test_mutations.py."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from gateway.fanout import Fanout
from gateway.http.options import AdmissionOptions
from gateway.subscription import Fit, Subscription
from loadtest.valkey import Valkey
from shared import keys
from shared.config import GatewaySettings
from shared.redis_client import connect
from shared.request_queue import Ticket
from shared.schemas import Request, SamplingParams
from shared.token_stream import Message, Repaired, Standing
from tests.integration.faults import Faults, FaultyScripts
from tests.integration.queue_actors import MODEL, Actors, tokens
from tests.integration.simulated_gateway import Client, SimulatedGateway
from tests.integration.simulated_worker import SimulatedWorker
from worker.engine_thread import EngineThread
from worker.holdings import Held
from worker.maintenance import Maintenance
from worker.publisher import Publisher

NUM_TOKENS = 9


@dataclass
class Cast:
    """One client at one gateway, one worker; what fails is planned."""

    actors: Actors
    faults: Faults
    gateway: SimulatedGateway
    worker: SimulatedWorker
    client: Client

    async def does(self, *actions: str) -> None:
        for action in actions:
            self.worker.act(action)
            await self.faults.quiet()

    async def makes_tokens(self) -> None:
        """Until outputs of the engine are under way to the event loop."""
        while not self.worker._posts.posted:
            await self.does("step")

    async def begins(self) -> None:
        """The request is running, and nothing of it has reached the gateway."""
        self.client.submit(self.gateway)
        await self.faults.quiet()
        await self.does("beat", "take")

    async def ends(self) -> None:
        for _ in range(40):
            await self.does("take", "step", "post", "emit")
            await self.gateway.listen()
            await self.faults.quiet()
        assert self.client.task is not None and self.client.task.done(), "the client hangs"
        self.client.task.result()
        assert self.client.outcome == "finished"

    async def field(self, name: str) -> bytes | None:
        return await self.actors.scripts.client.hget(keys.request(MODEL, "r1"), name)


@pytest.fixture
async def cast(valkey: Valkey, actors: Actors) -> AsyncIterator[Cast]:
    settings = GatewaySettings(redis_url=valkey.url, lease_ms=5000)
    faults, rng = Faults(random.Random(1)), random.Random(1)
    clients = [connect(settings), connect(settings)]
    gateway = SimulatedGateway("g1", FaultyScripts(clients[0], faults), settings, MODEL, rng)
    await gateway.open()
    worker = SimulatedWorker("w1", FaultyScripts(clients[1], faults), settings, MODEL, rng)
    params = SamplingParams(max_tokens=NUM_TOKENS, seed=1)
    request = Request(request_id="r1", model=MODEL, prompt_ids=(1, 2, 3, 4), params=params, tenant="t")
    cast = Cast(actors, faults, gateway, worker, Client(request, AdmissionOptions(0)))
    yield cast
    if cast.client.task is not None:
        cast.client.task.cancel()
        await asyncio.gather(cast.client.task, return_exceptions=True)
    worker.kill()
    await gateway.kill()
    for client in clients:
        await client.aclose()


async def what_no_message_brought_is_read_from_the_journal(cast: Cast) -> None:
    await cast.begins()
    await cast.makes_tokens()
    await cast.does("post", "emit")
    await cast.gateway.listen(dropped=1.0)
    cast.gateway.check(waiting_too=True)
    await cast.faults.quiet()
    assert b'["t"' in cast.client.seen


async def a_request_whose_take_went_unheard_goes_back(cast: Cast) -> None:
    cast.faults.planned["take"] = "lost_reply"
    await cast.begins()
    await cast.does("beat")
    assert await cast.field("state") == b"waiting"


async def what_an_earlier_attempt_made_is_not_mixed_in(cast: Cast) -> None:
    await cast.begins()
    await cast.makes_tokens()
    cast.worker.release_one()
    await cast.faults.quiet()
    await cast.ends()


async def what_was_settled_leaves_nothing_to_send(cast: Cast) -> None:
    await cast.begins()
    await cast.makes_tokens()
    await cast.does("post")
    await cast.actors.queue.cancel("r1")
    await cast.does("emit", "emit")
    assert cast.worker.is_idle


async def tokens_sent_again_are_counted_again(cast: Cast) -> None:
    """Its tenant is charged for them: Redis lost that too."""
    await cast.begins()
    charged: Any = keys.base(MODEL) + "tenant:t"
    client: Any = cast.actors.scripts.client
    before = await client.hgetall(charged)
    await cast.makes_tokens()
    await cast.does("post", "emit")
    journal = await client.get(keys.journal(MODEL, "r1"))
    await client.set(keys.journal(MODEL, "r1"), journal[: journal.index(b'["t"')])
    await client.hset(charged, mapping=before)
    await cast.ends()
    made = float(await client.hget(charged, "vtime:default")) - float(before[b"vtime:default"])
    assert (made, await cast.field("tokens")) == (NUM_TOKENS, str(NUM_TOKENS).encode())


async def a_repair_does_not_undo_a_departure(cast: Cast) -> None:
    await cast.begins()
    await cast.actors.queue.attach("r1", "g2")
    cast.faults.planned["repair"] = "late_request"
    cast.gateway.check(waiting_too=True)
    await cast.faults.quiet()
    cast.client.leave()
    await cast.faults.quiet()
    cast.faults.let_through(0)
    await cast.faults.quiet()
    client: Any = cast.actors.scripts.client
    assert await client.smembers(f"{keys.base(MODEL)}g:r1") == {b"g2"}


async def a_request_that_nobody_follows_is_not_brought_back(cast: Cast) -> None:
    await cast.begins()
    client: Any = cast.actors.scripts.client
    await client.flushall()
    cast.faults.planned["repair"] = "late_reply"
    cast.gateway.check(waiting_too=True)
    await cast.faults.quiet()
    cast.client.leave()
    await cast.faults.quiet()
    cast.faults.let_through(0)
    await cast.faults.quiet()
    assert await cast.field("state") is None


def subscription() -> Subscription:
    """Owner A, token 7 delivered."""
    s = Subscription(MODEL, Ticket("r1", "default", "t", 4, 8, 1), b"", bytearray(tokens(7)), "A")
    s.is_running = True
    return s


async def only_the_owner_is_heard(cast: Cast) -> None:
    s = subscription()
    assert s.offer(Message("r1", "B", len(s.journal), tokens(8).decode())) is Fit.OWNER
    assert s.journal == tokens(7)


async def a_tail_is_not_joined_to_messages_that_contradict_it(cast: Cast) -> None:
    s = subscription()
    s.offer(Message("r1", "A", len(s.journal), tokens(8).decode()))
    s.splice(len(tokens(7)), Repaired("tail", "running", "B", tokens(9) + tokens(10)))
    assert s.journal == tokens(7) + tokens(8)


async def equal_lengths_prove_nothing(cast: Cast) -> None:
    s = subscription()
    assert s.is_level(Standing("running", len(s.journal), "A"))
    assert not s.is_level(Standing("running", len(s.journal), "B"))
    assert not s.is_level(Standing("cancelled", len(s.journal), "A"))


async def nothing(*_: object) -> None: ...


def join_blindly(s: Subscription, prefix_length: int, repaired: Repaired) -> None:
    s.append(repaired.tail[len(s.journal) - prefix_length :])


def hear_anybody(s: Subscription, message: Message) -> Fit:
    s.append(message.frames.encode())
    return Fit.TAKEN


def collect_and_forget_nothing(publisher: Publisher) -> list[Any]:
    held = [publisher._holdings.get(request_id) for request_id in publisher._dirty]
    return [h.emission() for h in held if h is not None and len(h.journal) > h.sent]


DEFENCES: list[tuple[Callable[[Cast], Any], type, str, Any]] = [
    (what_no_message_brought_is_read_from_the_journal, Fanout, "_compare", lambda *_: False),
    (a_request_whose_take_went_unheard_goes_back, Maintenance, "_compare", nothing),
    (
        what_an_earlier_attempt_made_is_not_mixed_in, EngineThread, "_hand_out",
        lambda thread, _, outputs: thread.on_outputs(outputs),
    ),
    (what_was_settled_leaves_nothing_to_send, Publisher, "_collect", collect_and_forget_nothing),
    (tokens_sent_again_are_counted_again, Held, "rewind", lambda held, length: setattr(held, "sent", length)),
    (a_repair_does_not_undo_a_departure, Fanout, "_leave_again", nothing),
    (a_request_that_nobody_follows_is_not_brought_back, Fanout, "_is_followed", lambda *_: True),
    (only_the_owner_is_heard, Subscription, "offer", hear_anybody),
    (a_tail_is_not_joined_to_messages_that_contradict_it, Subscription, "splice", join_blindly),
    (equal_lengths_prove_nothing, Subscription, "is_level", lambda s, standing: standing.length == len(s.journal)),
]  # fmt: skip
NAMES = [schedule.__name__ for schedule, *_ in DEFENCES]


@pytest.mark.parametrize("defence", DEFENCES, ids=NAMES)
async def test_the_schedule_holds(cast: Cast, defence: tuple[Any, ...]) -> None:
    await defence[0](cast)


@pytest.mark.parametrize("defence", DEFENCES, ids=NAMES)
async def test_without_its_defence_it_fails(
    cast: Cast, defence: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule, owner, name, replacement = defence
    monkeypatch.setattr(owner, name, replacement)
    with pytest.raises(AssertionError):
        await schedule(cast)
