"""Which model gets a request: the target, its fallbacks, and whose word stands."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from gateway.dispatch import Placed
from gateway.http.options import AdmissionOptions
from gateway.models.choice import Candidate
from shared.errors import DeadlineUnreachable, HeadraceError, Overloaded, QueueFull
from shared.schemas import ModelCard, Request
from tests.unit.gateway.fakes import CARD, FakeCatalogue, FakeDispatcher, build_app, chat_body, client_of

BIG = msgspec.structs.replace(CARD, name="big", revision="big@1")
SHORT = msgspec.structs.replace(CARD, name="short", revision="short@1", context_length=8)
FULL = QueueFull("the queue of this model is full", retry_after_s=3.0)


class Routed(FakeCatalogue):
    """`chat` leads to these candidates."""

    def __init__(self, *candidates: Candidate) -> None:
        self.tried = candidates

    def cards(self) -> list[ModelCard]:
        return [CARD, BIG, SHORT]

    def check(self, name: str) -> None:
        if name != "chat":
            self.find(name)

    def candidates(self, name: str, key: str = "", *, made_before: str = "") -> list[Candidate]:
        return list(self.tried)


class Busy(FakeDispatcher):
    """Refuses for these models."""

    def __init__(self, **refusals: HeadraceError) -> None:
        super().__init__()
        self.refusals = refusals
        self.asked: list[str] = []

    async def submit(self, request: Request, options: AdmissionOptions) -> Placed:
        name = request.model.partition("@")[0]
        self.asked.append(name)
        self.refusal = self.refusals.get(name.rpartition("/")[2])
        return await super().submit(request, options)


def tried(card: ModelCard, reason: str = "") -> Candidate:
    return Candidate(card.revision, reason, is_tentative=True)


TARGET_FIRST = (tried(CARD), tried(SHORT, "queue_full"), tried(BIG, "queue_full"), Candidate(CARD.revision))
TARGET_LAST = (tried(SHORT, "no_workers"), Candidate(CARD.revision))


async def ask(dispatcher: Busy, *candidates: Candidate, **fields: Any) -> httpx.Response:
    app = build_app(dispatcher)
    object.__setattr__(app.state.services, "catalogue", Routed(*candidates))
    async with client_of(app) as client:
        return await client.post("/v1/chat/completions", json=chat_body(model="chat", **fields))


async def test_the_target_serves_under_the_name_that_was_asked() -> None:
    reply = await ask(Busy(), *TARGET_FIRST)
    assert (reply.json()["model"], reply.headers["x-headrace-model"]) == ("chat", CARD.revision)
    assert "x-headrace-fallback" not in reply.headers


@pytest.mark.parametrize("refusal", [FULL, DeadlineUnreachable("too many before it", retry_after_s=1.0)])
async def test_a_fallback_that_fits_has_a_request_whose_target_has_no_room(refusal: HeadraceError) -> None:
    dispatcher = Busy(tiny=refusal)
    reply = await ask(dispatcher, *TARGET_FIRST, max_completion_tokens=20, stream=True)
    assert (reply.status_code, dispatcher.asked) == (200, ["acme/tiny", "big"])  # `short` cannot take it
    assert (reply.headers["x-headrace-model"], reply.headers["x-headrace-fallback"]) == ("big@1", "queue_full")
    assert dispatcher.options[0].fallback == "queue_full" and '"model":"chat"' in reply.text


async def test_where_nobody_has_room_the_targets_refusal_stands() -> None:
    dispatcher = Busy(tiny=FULL, big=QueueFull("another is full", retry_after_s=9.0))
    reply = await ask(dispatcher, *TARGET_FIRST)
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "3")
    assert dispatcher.asked == ["acme/tiny", "big", "acme/tiny"] and "x-headrace-fallback" not in reply.headers


async def test_a_tenants_own_limit_is_no_reason_for_another_model() -> None:
    dispatcher = Busy(tiny=Overloaded("your share of the queue is full", retry_after_s=1.0))
    assert (await ask(dispatcher, *TARGET_FIRST)).status_code == 429 and dispatcher.asked == ["acme/tiny"]


async def test_what_the_target_cannot_take_is_its_own_400() -> None:
    dispatcher = Busy()
    reply = await ask(dispatcher, *TARGET_FIRST, max_completion_tokens=1000)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert dispatcher.asked == []


async def test_without_a_fallback_that_fits_a_request_waits_at_its_target() -> None:
    dispatcher = Busy()
    reply = await ask(dispatcher, *TARGET_LAST, max_completion_tokens=20)
    assert (reply.headers["x-headrace-model"], dispatcher.asked) == (CARD.revision, ["acme/tiny"])
    assert not dispatcher.options[0].is_tentative
