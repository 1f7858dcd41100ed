"""Which model gets a request: the candidates of the name that was asked, in order, until one has it in its queue.

A fallback must fit: where it cannot take the request (context, template, features) or has no room either, it is passed
over, and what the target itself says stands. Lines of a batch have time, so they wait for their target.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol, TypeVar

from starlette.requests import Request as HttpRequest

from gateway.dependencies import Services
from gateway.dispatch import Placed
from gateway.http.inside import inside_of
from gateway.http.options import AdmissionOptions
from gateway.models.choice import Candidate
from gateway.openai.convert import Target
from gateway.openai.logprobs import TokenBytes
from gateway.routes.admitting.limits import require_model
from shared.access.entries import Tenant
from shared.errors import DeadlineUnreachable, HeadraceError, InvalidRequest, Overloaded, QueueFull

MODEL_HEADER = "x-headrace-model"
FALLBACK_HEADER = "x-headrace-fallback"


class Taken(Protocol):
    """What an attempt makes of a request that is in a queue now."""

    @property
    def placed(self) -> Placed: ...


T = TypeVar("T", bound=Taken)
# Convert for the target, and submit under the options.
Attempt = Callable[[Target, AdmissionOptions], Awaitable[T]]


async def first_with_room(
    http: HttpRequest, services: Services, name: str, options: AdmissionOptions, attempt: Attempt[T], *,
    made_before: str = "",
) -> T:  # fmt: skip
    """Tells the reply which model it is, and why not the one that was asked. `made_before`: the revision that made what
    the conversation has so far. Raises what the target says.
    """
    require_model(services, options.tenant, name)
    candidates = _candidates(http, services, name, options, made_before)
    for candidate in candidates[:-1]:
        try:
            return await _tried(http, services, name, _for(options, candidate), attempt, candidate)
        except HeadraceError as error:
            if not _is_passed_over(candidate, error):
                raise
    options = replace(options, has_alternatives=len(candidates) > 1)
    return await _tried(http, services, name, options, attempt, candidates[-1])


async def target_for(
    http: HttpRequest, services: Services, tenant: Tenant, name: str, candidate: Candidate | None = None
) -> Target:
    """For whom a body is converted. Without a candidate nothing is asked of a model, and a route's largest stands for
    all. Raises ModelNotFound, Unavailable."""
    catalogue = services.catalogue
    if candidate is None:
        require_model(services, tenant, name)
        card = catalogue.card(name)
    else:
        card = catalogue.card_of(candidate)
    tokenizer = await catalogue.tokenizer(card)
    return Target(http.state.request_id, card, tokenizer, services.settings.max_choices, tenant, asked=name)


async def view_joined(services: Services, target: Target, placed: Placed) -> str:
    """How the run of another model, which a request has joined, is seen; '' where it is the target's, or forgotten."""
    if placed.model == target.card.revision:
        return ""
    try:
        return (await services.dispatcher.record(placed)).view
    except HeadraceError:
        return ""


async def token_bytes_of(services: Services, target: Target, placed: Placed) -> TokenBytes:
    """Of the model that makes a run; of the target where that is not known here."""
    catalogue = services.catalogue
    if placed.model == target.card.revision:
        return target.tokenizer.token_bytes
    try:
        return (await catalogue.tokenizer(catalogue.find(placed.model))).token_bytes
    except HeadraceError:
        return target.tokenizer.token_bytes


def _candidates(
    http: HttpRequest, services: Services, name: str, options: AdmissionOptions, made_before: str
) -> list[Candidate]:
    """A key is hashed, so that a repeat is led to where its run is."""
    inside = inside_of(http.scope)
    key_hash = options.key_hash if inside is None else inside.key_hash
    key = f"{options.tenant.name}\n{key_hash}" if key_hash else ""
    candidates = services.catalogue.candidates(name, key, made_before=made_before)
    return candidates if inside is None else [Candidate(candidates[-1].model)]


def _for(options: AdmissionOptions, candidate: Candidate) -> AdmissionOptions:
    return replace(options, has_alternatives=True, is_tentative=True, fallback=candidate.reason)


async def _tried(
    http: HttpRequest, services: Services, name: str, options: AdmissionOptions, attempt: Attempt[T],
    candidate: Candidate,
) -> T:  # fmt: skip
    target = await target_for(http, services, options.tenant, name, candidate)
    taken = await attempt(target, options)
    http.state.reply_headers[MODEL_HEADER] = taken.placed.model
    is_joined = taken.placed.request_id != target.request_id
    if candidate.reason and not is_joined:
        http.state.reply_headers[FALLBACK_HEADER] = candidate.reason
    return taken


def _is_passed_over(candidate: Candidate, error: HeadraceError) -> bool:
    """The target for want of room only, a fallback for whatever is wrong with it."""
    return isinstance(error, InvalidRequest | Overloaded if candidate.reason else QueueFull | DeadlineUnreachable)
