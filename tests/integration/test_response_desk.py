"""Stored responses between queue and store: who ends them, once, and what a dead gateway leaves behind."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace

import pytest

from gateway.dispatch import Placed
from gateway.openai.responses.view import ResponseView, encode_response_view
from gateway.responses.desk import ResponseDesk, now_ms
from gateway.responses.finisher import Finisher
from gateway.responses.reading import conversation_of, response_of
from gateway.store.database import Database
from gateway.store.responses import ResponseRows, StoredResponse
from shared.errors import InvalidRequest, RequestNotFound, ResponseNotFound, Unavailable
from shared.registry import RequestRecord
from shared.schemas import ChoiceEndFrame, EndFrame, Frame, Outcome, State, TokensFrame, Usage
from shared.servers.store_address import StoreAddress

TEXT: list[Frame] = [TokensFrame(0, [1], "the river")]
DONE: list[Frame] = [*TEXT, ChoiceEndFrame(0, "stop"), EndFrame(Outcome.FINISHED, Usage(3, 1))]
LEASE_MS = 1000
NEW = StoredResponse(
    id="resp_000000000001aa",
    tenant="mine",
    request_id="000000000001aa",
    revision="m@1",
    is_background=True,
    request=encode_response_view(ResponseView(model="m", echo={}, is_background=True)),
    input='[{"type":"message","id":"i","role":"user","content":[]}]',
    created_at_ms=now_ms(),
)


class FakeQueue:
    """Knows one request, if any."""

    def __init__(self) -> None:
        self.state: State | None = State.RUNNING
        self.frames: list[Frame] = list(TEXT)
        self.is_away = False

    async def record(self, placed: Placed) -> RequestRecord:
        if self.is_away:
            raise Unavailable("away")
        if self.state is None:
            raise RequestNotFound("gone")
        return RequestRecord(
            placed.request_id, self.state, "", 1, "mine", "default", 3, 8, 1, 1, True, False, "", 1, 1, 1, 7_000, ""
        )

    async def journal(self, placed: Placed) -> list[Frame]:
        return self.frames

    async def cancel(self, request_id: str, tenant: str) -> str:
        self.state, self.frames = State.CANCELLED, [*TEXT, EndFrame(Outcome.CANCELLED)]
        return "cancelled"

    @contextlib.asynccontextmanager
    async def follow(self, request_id: str) -> AsyncGenerator[AsyncIterator[list[Frame]]]:
        async def frames() -> AsyncIterator[list[Frame]]:
            yield self.frames

        yield frames()

    def finish(self) -> None:
        self.state, self.frames = State.FINISHED, list(DONE)


class Kept:
    """A desk and a finisher on a store of their own, with one response that runs."""

    def __init__(self, rows: ResponseRows) -> None:
        self.rows = rows
        self.queue = FakeQueue()
        self.desk = ResponseDesk(rows, self.queue, LEASE_MS)
        self.finisher = Finisher(rows, self.desk, self.queue, LEASE_MS)

    async def expire_leases(self) -> None:
        await self.rows.lease(now_ms() + 10 * LEASE_MS, 0, 100)


@pytest.fixture
async def kept(store: StoreAddress) -> AsyncIterator[Kept]:
    database = Database(store)
    await database.start()
    kept = Kept(ResponseRows(database, ttl_s=60))
    await kept.desk.keep(NEW)
    yield kept
    await kept.desk.stop()
    await database.stop()


async def found(kept: Kept) -> StoredResponse:
    return await kept.desk.find(NEW.id, NEW.tenant)


async def test_while_it_runs_its_status_is_the_queues(kept: Kept) -> None:
    assert (await found(kept)).status == "in_progress"
    kept.queue.state = State.WAITING
    assert (await found(kept)).status == "queued"


async def test_who_asks_after_its_end_ends_it(kept: Kept) -> None:
    kept.queue.finish()
    stored = await found(kept)
    kept.queue.state = None  # the queue forgets; the store does not
    assert await found(kept) == replace(stored, num_misses=0)
    response = response_of(stored)
    assert response["status"] == "completed" and response["completed_at"] == 7
    assert response["output"][0]["content"][0]["text"] == "the river"


@pytest.mark.parametrize("response_id", ["resp_\0", "resp_", "r" * 128, "resp_x/../y"])
async def test_an_id_that_was_never_given_is_not_found(kept: Kept, response_id: str) -> None:
    with pytest.raises(ResponseNotFound):
        await kept.desk.find(response_id, "mine")


async def test_another_tenants_is_not_found(kept: Kept) -> None:
    with pytest.raises(ResponseNotFound):
        await kept.desk.find(NEW.id, "theirs")
    with pytest.raises(InvalidRequest, match="not found"):
        await kept.desk.previous(NEW.id, "theirs")


async def test_a_conversation_is_its_input_and_its_output_once_it_has_one(kept: Kept) -> None:
    with pytest.raises(InvalidRequest, match="not finished"):
        await kept.desk.previous(NEW.id, "mine")
    kept.queue.finish()
    assert [item["role"] for item in conversation_of(await kept.desk.previous(NEW.id, "mine"))] == ["user", "assistant"]


async def test_cancelling_twice_is_cancelling_once(kept: Kept) -> None:
    cancelled = await kept.desk.cancel(await found(kept))
    assert cancelled.status == "cancelled" and await kept.desk.cancel(cancelled) == cancelled


async def test_what_has_ended_stays_as_it_was(kept: Kept) -> None:
    kept.queue.finish()
    await found(kept)
    await kept.rows.end(NEW.id, "failed", b"", 9)
    assert (await found(kept)).status == "completed"


async def test_what_is_deleted_while_it_runs_is_cancelled_and_gone(kept: Kept) -> None:
    await kept.desk.delete(await found(kept))
    assert kept.queue.state is State.CANCELLED
    with pytest.raises(ResponseNotFound):
        await found(kept)


async def test_the_finisher_ends_what_nobody_watches_after_its_lease(kept: Kept) -> None:
    kept.queue.finish()
    assert await kept.finisher.look() == 0  # its gateway may live
    await kept.expire_leases()
    assert await kept.finisher.look() == 1
    kept.queue.is_away = True
    assert (await found(kept)).status == "completed"


async def test_what_the_queue_does_not_know_twice_is_lost(kept: Kept) -> None:
    kept.queue.state = None
    for num_ended in (0, 1):
        await kept.expire_leases()
        assert await kept.finisher.look() == num_ended
    response = response_of(await found(kept))
    assert response["status"] == "failed" and "lost" in response["error"]["message"]


async def test_a_queue_that_is_away_loses_nothing(kept: Kept) -> None:
    kept.queue.is_away = True
    for _ in range(3):
        await kept.expire_leases()
        with pytest.raises(Unavailable):
            await kept.finisher.look()
    assert (await found(kept)).status == "queued"


async def test_one_gateway_at_a_time_looks_after_it(kept: Kept) -> None:
    await kept.expire_leases()
    now = now_ms()
    assert [row.id for row in await kept.rows.lease(now, now + LEASE_MS, 10)] == [NEW.id]
    assert await kept.rows.lease(now, now + LEASE_MS, 10) == []


async def test_who_is_followed_to_its_end_is_stored(kept: Kept) -> None:
    kept.queue.frames = list(DONE)
    kept.desk.watch(NEW)
    (watcher,) = kept.desk._watchers
    await watcher
    kept.queue.is_away = True
    assert (await found(kept)).status == "completed"
