"""Requests by their id, from any gateway: where one stands, its stream again from a frame, its end.

An id is what `x-request-id` said, with or without the prefix an answer's `id` has. Only the tenant whose request it is
finds it. In a resumed stream every data frame has its number as `id`, counted from 1 as in the original stream; who
has seen N of them asks for those `starting_after=N`. Events of a response have their own numbers instead.
"""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query
from starlette.responses import JSONResponse, Response

from gateway.dependencies import ServicesDep, TenantDep
from gateway.http.sse import EventStream
from gateway.openai.responses.events import ResponseEvents
from gateway.openai.responses.view import ResponseView, decode_response_view
from gateway.openai.view import decode_view
from gateway.routes.delivery import Numbers, QueuePosition, opened_events
from gateway.routes.responses.streams import Run, live_stream
from gateway.routes.standing import description
from shared.errors import InvalidRequest, RequestNotFound

router = APIRouter(prefix="/v1/requests", tags=["requests"])
_ID = re.compile(r"(?:chatcmpl-|cmpl-|resp_)?([A-Za-z0-9._-]{1,64})")
_NUMBER = re.compile(r"[0-9]{1,12}")
Id = Annotated[str, Path(max_length=80)]


@router.get("/{request_id}")
async def get_request(request_id: Id, services: ServicesDep, tenant: TenantDep) -> Response:
    dispatcher = services.dispatcher
    found = await dispatcher.find(_bare(request_id), tenant.name)
    return JSONResponse(description(found, await dispatcher.place(found), await dispatcher.events(found)))


@router.post("/{request_id}/cancel")
async def cancel_request(request_id: Id, services: ServicesDep, tenant: TenantDep) -> Response:
    """Ended when this answers; what had ended before stays as it was."""
    bare_id = _bare(request_id)
    state = await services.dispatcher.cancel(bare_id, tenant.name)
    return JSONResponse({"id": bare_id, "object": "request", "status": state})


@router.get("/{request_id}/events")
async def request_events(
    request_id: Id,
    services: ServicesDep,
    tenant: TenantDep,
    starting_after: Annotated[str | None, Query()] = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    after = _number(starting_after, "starting_after") or _number(last_event_id, "last-event-id")
    dispatcher, settings = services.dispatcher, services.settings
    found = await dispatcher.find(_bare(request_id), tenant.name)
    view = decode_view(found.record.view) or decode_response_view(found.record.view)
    if view is None:
        raise RequestNotFound(f"request {request_id} has no stream")
    placed = await dispatcher.join(found.record.request_id, tenant.name)
    token_bytes = None
    if view.logprobs:
        token_bytes = (await services.catalogue.tokenizer(services.catalogue.find(placed.model))).token_bytes
    if isinstance(view, ResponseView):
        response = ResponseEvents(view, placed.request_id, token_bytes=token_bytes)
        return await live_stream(Run(services, placed.request_id, response, None), after - 1)
    chunks = view.chunks(placed.request_id, placed.model, token_bytes)
    events = await opened_events(dispatcher.follow(placed.request_id), chunks, to_event=Numbers(after).event)
    comment = QueuePosition(dispatcher, placed.request_id, end=b"\n")
    return EventStream(
        events, keepalive_s=settings.keepalive_s, stall_timeout_s=settings.stall_timeout_s, comment=comment
    )


def _bare(request_id: str) -> str:
    match = _ID.fullmatch(request_id)
    if match is None:
        raise RequestNotFound(f"request {request_id[:80]} is not known (any more)")
    return match.group(1)


def _number(value: str | None, param: str) -> int:
    if value is None or value == "":
        return 0
    if not _NUMBER.fullmatch(value):
        raise InvalidRequest(f"{param}: must be the number of a frame, from 0", param=param)
    return int(value)
