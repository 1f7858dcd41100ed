"""A gateway's surface around fakes: what routes need, without a queue.

The dispatcher answers every request with the batches of frames it was given, and records what it was asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Counter

from gateway.batches.means import Around
from gateway.batches.office import build_office
from gateway.dependencies import Services, TextPool
from gateway.dispatch import Placed
from gateway.http.errors import install_error_handlers
from gateway.http.middleware import install_middleware
from gateway.http.options import AdmissionOptions
from gateway.lookup import Found, Place
from gateway.models.choice import Candidate
from gateway.responses.desk import ResponseDesk
from gateway.routes import batches, files, health, openai, tokenization
from gateway.routes.responses import creation, stored
from gateway.store.database import Database
from gateway.store.responses import ResponseRows
from shared.access.entries import ANONYMOUS, Tenant
from shared.access.limits import LimitStanding
from shared.config import GatewaySettings
from shared.errors import AuthenticationFailed, ModelNotFound, RequestNotFound
from shared.observability import GatewayMetrics
from shared.registry import RequestRecord
from shared.schemas import ChoiceEndFrame, EndFrame, EventFrame, Frame, ModelCard, Outcome, Request, TokensFrame, Usage
from shared.text.tokenizer import Tokenizer
from tests.unit.shared.tokenizer_samples import CHAT_TEMPLATE, blob_of, byte_level

CARD = ModelCard(
    name="acme/tiny",
    revision="acme/tiny@0123456789abcdef0123",
    architecture="llama",
    context_length=512,
    max_request_tokens=100_000,
    vocab_size=265,
    stop_token_ids=(260,),
    tokenizer_digest="t",
    created_s=1_764_500_000,
)
TOKENIZER = Tokenizer.from_blob(blob_of(byte_level(), chat_template=CHAT_TEMPLATE))
SETTINGS = GatewaySettings.model_validate({"max_body_bytes": 20_000, "max_choices": 4})
TAKEN = EventFrame("taken", {"worker": "w-1", "attempt": 1})
Batches = Sequence[Sequence[Frame]]


def answer(*texts: str, choice: int = 0, reason: str = "stop") -> list[list[Frame]]:
    """One choice that says `texts`, a batch each."""
    tokens: list[list[Frame]] = [[TokensFrame(choice, [1], text)] for text in texts]
    usage = Usage(prompt_tokens=5, completion_tokens=len(texts), cached_tokens=2)
    return [[TAKEN], *tokens, [ChoiceEndFrame(choice, reason), EndFrame(Outcome.FINISHED, usage)]]


class FakeCatalogue:
    def cards(self) -> list[ModelCard]:
        return [CARD]

    def names(self) -> list[str]:
        return [card.name for card in self.cards()]

    def check(self, name: str) -> None:
        self.find(name)

    def card(self, name: str) -> ModelCard:
        return self.find(name)

    def candidates(self, name: str, key: str = "", *, made_before: str = "") -> list[Candidate]:
        return [Candidate(self.find(name).name)]

    def card_of(self, candidate: Candidate) -> ModelCard:
        return self.find(candidate.model)

    def workers(self) -> dict[str, int]:
        return {card.name: 1 for card in self.cards()}

    def paused(self) -> list[str]:
        return []

    def find(self, name: str) -> ModelCard:
        for card in self.cards():
            if name in (card.name, card.revision):
                return card
        raise ModelNotFound(f"model {name[:80]!r} does not exist; available: {CARD.name}", param="model")

    async def tokenizer(self, card: ModelCard) -> Tokenizer:
        return TOKENIZER


class FakeAuthenticator:
    """Everybody is `asking`; None: nobody is known."""

    def __init__(self, asking: Tenant | None = ANONYMOUS) -> None:
        self.asking = asking

    def tenant(self, authorization: str) -> Tenant:
        if self.asking is None:
            raise AuthenticationFailed("the API key is not known here")
        return self.asking


class FakeDispatcher:
    """`hold` keeps the journal open, without an end, after its batches."""

    def __init__(self, batches: Batches = (), *, refusal: Exception | None = None, hold: bool = False) -> None:
        self.batches = batches or answer("Hello", " world")
        self.refusal = refusal
        self.standing: LimitStanding | None = None
        self.failure: Exception | None = None
        self.hold = hold
        self.waits_at: Place | None = None
        self.found: Found | None = None
        self.requests: list[Request] = []
        self.options: list[AdmissionOptions] = []
        self.left: list[str] = []
        self.withdrawn: list[str] = []
        self.was_left = asyncio.Event()

    async def reserve(self, tenant: Tenant, request: Request) -> LimitStanding | None:
        return self.standing

    async def join_run(self, request: Request, options: AdmissionOptions) -> None:
        """No idempotency key has a run."""

    async def withdraw(self, request_id: str) -> None:
        self.withdrawn.append(request_id)

    async def submit(self, request: Request, options: AdmissionOptions) -> Placed:
        if self.refusal is not None:
            raise self.refusal
        self.requests.append(request)
        self.options.append(options)
        return Placed(request.request_id, request.model, self.waits_at)

    async def find(self, request_id: str, tenant: str) -> Found:
        if self.found is None or request_id != self.found.record.request_id:
            raise RequestNotFound(f"request {request_id} is not known")
        return self.found

    async def join(self, request_id: str, tenant: str) -> Placed:
        return Placed(request_id, (await self.find(request_id, tenant)).model)

    async def cancel(self, request_id: str, tenant: str) -> str:
        await self.find(request_id, tenant)
        return "cancelled"

    async def events(self, found: Found) -> list[EventFrame]:
        return [TAKEN]

    async def journal(self, placed: Placed) -> list[Frame]:
        return [frame for batch in self.batches for frame in batch]

    async def place(self, found: Found) -> Place | None:
        return self.waits_at

    async def place_here(self, request_id: str) -> Place | None:
        return self.waits_at

    async def record(self, placed: Placed) -> RequestRecord:
        raise RequestNotFound("a fake keeps no records")

    @asynccontextmanager
    async def follow(self, request_id: str) -> AsyncGenerator[AsyncIterator[list[Frame]]]:
        try:
            yield self._journal()
        finally:
            self.left.append(request_id)
            self.was_left.set()

    async def _journal(self) -> AsyncIterator[list[Frame]]:
        for batch in self.batches:
            await asyncio.sleep(0)
            yield list(batch)
        if self.failure is not None:
            raise self.failure
        if self.hold:
            await asyncio.Event().wait()


class FakeReadiness:
    def __init__(self) -> None:
        self.answer: tuple[bool, str] = (True, "")

    async def is_ready(self, min_workers: int) -> tuple[bool, str]:
        return self.answer


async def _ignored(*_: str) -> None: ...


def build_app(
    dispatcher: FakeDispatcher | None = None,
    settings: GatewaySettings = SETTINGS,
    asking: Tenant | None = ANONYMOUS,
) -> FastAPI:
    app = FastAPI()
    install_error_handlers(app)
    install_middleware(app, settings.max_body_bytes, settings.cors_origins)
    app.include_router(openai.router)
    app.include_router(tokenization.router)
    app.include_router(creation.router)
    app.include_router(stored.router)
    app.include_router(files.router)
    app.include_router(batches.router)
    app.include_router(health.router)
    registry = CollectorRegistry()
    Counter("headrace_sample_total", "A sample", registry=registry).inc()
    dispatcher = dispatcher or FakeDispatcher()
    database = Database(settings.store)
    around = Around(app, lambda _: ANONYMOUS, FakeCatalogue().check, _ignored, _ignored)
    office = build_office(settings, "g-fake", database, GatewayMetrics(CollectorRegistry()), around)
    app.state.services = Services(
        settings=settings,
        authenticator=FakeAuthenticator(asking),
        catalogue=FakeCatalogue(),
        dispatcher=dispatcher,
        readiness=FakeReadiness(),
        text_pool=TextPool(1),
        metrics_registry=registry,
        database=database,
        responses=ResponseDesk(ResponseRows(database, settings.store_ttl_s), dispatcher, lease_ms=1000),
        library=office.library,
        batches=office.desk,
    )
    return app


def client_of(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")


def chat_body(**fields: Any) -> dict[str, Any]:
    return {"model": CARD.name, "messages": [{"role": "user", "content": "hi"}], **fields}


def completion_body(**fields: Any) -> dict[str, Any]:
    return {"model": CARD.name, "prompt": "hi", **fields}
