"""Stored responses by their id, on any gateway: read, streamed again, cancelled, deleted, their input items.

Only the tenant whose response it is finds it.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from starlette.responses import JSONResponse, Response

from gateway.dependencies import Services, ServicesDep, TenantDep
from gateway.openai.logprobs import TokenBytes
from gateway.responses.reading import events_of, input_of, response_of, view_of
from gateway.routes.responses.streams import Run, live_stream, stored_stream
from gateway.store.responses import StoredResponse
from shared.errors import HeadraceError, InvalidRequest

router = APIRouter(prefix="/v1/responses", tags=["responses"])
Id = Annotated[str, Path(max_length=128)]
_NUMBER = re.compile(r"[0-9]{1,9}")
_MAX_ITEMS = 100


@router.get("/{response_id}")
async def get_response(
    response_id: Id,
    services: ServicesDep,
    tenant: TenantDep,
    stream: Annotated[Literal["true", "false"], Query()] = "false",
    starting_after: Annotated[str | None, Query()] = None,
) -> Response:
    """With `stream`, its events: those it has had, but for the first `starting_after` + 1, and those to come."""
    stored = await services.responses.find(response_id, tenant.name)
    token_bytes = await _token_bytes(services, stored)
    if stream == "false":
        if starting_after is not None:
            raise InvalidRequest("starting_after: is only allowed when stream is true", param="starting_after")
        return JSONResponse(response_of(stored, token_bytes))
    events, after = events_of(stored, token_bytes), _after(starting_after)
    if stored.is_finished:
        return stored_stream(services, stored, events, after)
    placed = await services.dispatcher.join(stored.request_id, tenant.name)
    return await live_stream(Run(services, placed.request_id, events, stored), after)


@router.delete("/{response_id}")
async def delete_response(response_id: Id, services: ServicesDep, tenant: TenantDep) -> Response:
    """One that still runs is cancelled."""
    stored = await services.responses.find(response_id, tenant.name)
    await services.responses.delete(stored)
    return JSONResponse({"id": stored.id, "object": "response", "deleted": True})


@router.post("/{response_id}/cancel")
async def cancel_response(response_id: Id, services: ServicesDep, tenant: TenantDep) -> Response:
    """Of one in the background; what has ended stays as it is."""
    stored = await services.responses.find(response_id, tenant.name)
    if not stored.is_background:
        raise InvalidRequest(f"Cannot cancel a synchronous response: '{stored.id}' has no background.", param=None)
    cancelled = await services.responses.cancel(stored)
    return JSONResponse(response_of(cancelled, await _token_bytes(services, stored)))


@router.get("/{response_id}/input_items")
async def input_items(
    response_id: Id,
    services: ServicesDep,
    tenant: TenantDep,
    limit: Annotated[int, Query(ge=1, le=_MAX_ITEMS)] = 20,
    order: Annotated[Literal["asc", "desc"], Query()] = "desc",
    after: Annotated[str | None, Query(max_length=256)] = None,
) -> Response:
    """The conversation it was given, in pages; the last item first unless `order` says otherwise."""
    items = input_of(await services.responses.find(response_id, tenant.name))
    if order == "desc":
        items.reverse()
    page = items[_place_after(items, after) :][: limit + 1]
    shown, has_more = page[:limit], len(page) > limit
    ends = {"first_id": shown[0]["id"], "last_id": shown[-1]["id"]} if shown else {"first_id": None, "last_id": None}
    return JSONResponse({"object": "list", "data": shown, **ends, "has_more": has_more})


def _place_after(items: list[dict[str, Any]], after: str | None) -> int:
    if after is None:
        return 0
    place = next((number for number, item in enumerate(items, 1) if item["id"] == after), None)
    if place is None:
        raise InvalidRequest(f"after: there is no item '{after[:80]}'", param="after")
    return place


def _after(starting_after: str | None) -> int:
    if starting_after is None or starting_after == "":
        return -1
    if not _NUMBER.fullmatch(starting_after):
        raise InvalidRequest("starting_after: must be the number of an event, from 0", param="starting_after")
    return int(starting_after)


async def _token_bytes(services: Services, stored: StoredResponse) -> TokenBytes | None:
    """Names for the tokens of logprobs; None where none were asked for, or the model that made them is gone."""
    if not view_of(stored).logprobs:
        return None
    try:
        tokenizer = await services.catalogue.tokenizer(services.catalogue.find(stored.revision))
    except HeadraceError:
        return None
    return tokenizer.token_bytes
