"""What routes are given: the services behind them, as protocols, and the pool for text work.

The composition root builds one `Services` and puts it at `app.state.services`; tests put fakes there. Routes
know nothing else of the gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Annotated, Protocol, TypeVar, cast

from fastapi import Depends
from prometheus_client import CollectorRegistry
from starlette.requests import Request as HttpRequest

from gateway.batches.desk import Desk
from gateway.dispatch import Placed
from gateway.files.library import Library
from gateway.http.inside import inside_of
from gateway.http.options import AdmissionOptions
from gateway.lookup import Found, Place
from gateway.models.choice import Candidate
from gateway.responses.desk import ResponseDesk
from gateway.store.database import Database
from shared.access.entries import Tenant
from shared.access.limits import LimitStanding
from shared.config import GatewaySettings
from shared.registry import RequestRecord
from shared.schemas import EventFrame, Frame, ModelCard, Request
from shared.text.tokenizer import Tokenizer

T = TypeVar("T")
# Rendering and tokenizing this much takes about as long as handing it to a thread.
INLINE_BYTES = 4096


class Catalogue(Protocol):
    """The models of the fleet and the routes to them, read from memory."""

    def names(self) -> list[str]:
        """What a client may ask: models, and routes that lead to one."""
        ...

    def check(self, name: str) -> None:
        """Raises ModelNotFound for a name that cannot be asked, or Unavailable when nothing is known yet."""
        ...

    def card(self, name: str) -> ModelCard:
        """What stands for a name where nothing is asked of a model. Raises ModelNotFound, Unavailable."""
        ...

    def candidates(self, name: str, key: str = "", *, made_before: str = "") -> list[Candidate]:
        """Who is to be tried for a name, in order. Raises ModelNotFound, Unavailable."""
        ...

    def card_of(self, candidate: Candidate) -> ModelCard:
        """Raises Unavailable where the first worker of its model is awaited."""
        ...

    def cards(self) -> list[ModelCard]: ...

    def workers(self) -> dict[str, int]:
        """Live workers by model name."""
        ...

    def paused(self) -> list[str]:
        """Revisions an operator has paused: they are admitted to, and not served."""
        ...

    def find(self, name: str) -> ModelCard:
        """Of a model or revision, past routes. Raises ModelNotFound, or Unavailable when nothing is known yet."""
        ...

    async def tokenizer(self, card: ModelCard) -> Tokenizer: ...


class Authenticator(Protocol):
    def tenant(self, authorization: str) -> Tenant:
        """Whose the key of an Authorization header is. Raises AuthenticationFailed or Unavailable."""
        ...


class Dispatcher(Protocol):
    """Admission, and the journals of what was admitted."""

    async def reserve(self, tenant: Tenant, request: Request) -> LimitStanding | None:
        """Charge a request to its tenant's limits, before `submit`. None: it has none. May raise Unavailable."""
        ...

    async def submit(self, request: Request, options: AdmissionOptions) -> Placed:
        """Raises Overloaded, Unavailable or IdempotencyConflict; on return the request is queued, or joined."""
        ...

    async def withdraw(self, request_id: str) -> None:
        """End what was submitted and is not followed yet; it pays nothing."""
        ...

    async def join_run(self, request: Request, options: AdmissionOptions) -> Placed | None:
        """Join the run that the idempotency key of `options` has, if any. May raise IdempotencyConflict."""
        ...

    async def join(self, request_id: str, tenant: str) -> Placed:
        """One more client is about to follow. Raises RequestNotFound, also for another tenant's."""
        ...

    async def find(self, request_id: str, tenant: str) -> Found:
        """Raises RequestNotFound, also for another tenant's."""
        ...

    async def record(self, placed: Placed) -> RequestRecord:
        """What is known of a request that was submitted or joined. Raises RequestNotFound, Unavailable."""
        ...

    async def events(self, found: Found) -> list[EventFrame]:
        """What happened to it so far."""
        ...

    async def place(self, found: Found) -> Place | None:
        """Where a request waits; None when it does not."""
        ...

    async def place_here(self, request_id: str) -> Place | None:
        """As `place`, for a request that is followed here; free while it runs."""
        ...

    async def cancel(self, request_id: str, tenant: str) -> str:
        """The state it has ended in."""
        ...

    def follow(self, request_id: str) -> AbstractAsyncContextManager[AsyncIterator[list[Frame]]]:
        """Frames in order, up to the EndFrame. Leaving before it cancels. May raise StreamContradiction."""
        ...


class Readiness(Protocol):
    async def is_ready(self, min_workers: int) -> tuple[bool, str]:
        """Whether requests can be accepted and so many workers live; in words why not."""
        ...


class TextPool:
    """Threads for long prompts and heavy work; short ones are done where they are. `close` waits for what runs."""

    def __init__(self, num_threads: int) -> None:
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="text")

    async def run(self, size_bytes: int, work: Callable[[], T], *, is_heavy: bool = False) -> T:
        if size_bytes <= INLINE_BYTES and not is_heavy:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class Services:
    settings: GatewaySettings
    authenticator: Authenticator
    catalogue: Catalogue
    dispatcher: Dispatcher
    readiness: Readiness
    text_pool: TextPool
    metrics_registry: CollectorRegistry
    database: Database
    responses: ResponseDesk
    library: Library
    batches: Desk


async def _services(http: HttpRequest) -> Services:
    """A coroutine, as FastAPI would run a function in a thread."""
    return cast("Services", http.app.state.services)


ServicesDep = Annotated[Services, Depends(_services)]


async def _tenant(http: HttpRequest, services: ServicesDep) -> Tenant:
    """Asked before a route runs, so before a body is read."""
    inside = inside_of(http.scope)
    if inside is not None:
        return inside.tenant
    return services.authenticator.tenant(http.headers.get("authorization", ""))


TenantDep = Annotated[Tenant, Depends(_tenant)]
