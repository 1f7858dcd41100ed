"""POST /v1/responses, and how many tokens its prompt would have.

What refuses a request does so before anything is begun. A response that is kept is in the store before its request is
in the queue, and its request is in the queue before its first event is written: whatever dies then, it is found.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import orjson
from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from gateway.dependencies import Services, ServicesDep, TenantDep
from gateway.dispatch import Placed
from gateway.http.options import AdmissionOptions, digest_of, is_strict
from gateway.openai.convert import Target
from gateway.openai.responses.convert import ConvertedResponse, num_input_tokens, response_request
from gateway.openai.responses.events import ResponseEvents
from gateway.openai.responses.fields import NO_EFFECT, REFUSED
from gateway.openai.responses.protocol import Prompted, ResponseRequest, parse_prompted, parse_response
from gateway.openai.responses.view import decode_response_view, encode_response_view, response_id
from gateway.responses.desk import now_ms
from gateway.responses.reading import conversation_of, response_of
from gateway.routes.admitting.arrival import json_bytes, options_of
from gateway.routes.admitting.limits import require_class, submit
from gateway.routes.admitting.serving import first_with_room, target_for, token_bytes_of, view_joined
from gateway.routes.delivery import QueuePosition, work_facts
from gateway.routes.documentation import body_schema
from gateway.routes.responses.streams import Run, finished, live_stream
from gateway.routes.standing import DURABILITY_HEADER, place_headers
from gateway.store.responses import StoredResponse
from shared.access.entries import Tenant
from shared.errors import HeadraceError

router = APIRouter(tags=["responses"])


@dataclass(frozen=True, slots=True)
class _Taken:
    """A response whose request is in a queue; `stored` is None where it is not kept."""

    placed: Placed
    target: Target
    converted: ConvertedResponse
    stored: StoredResponse | None


@router.post(
    "/v1/responses",
    response_class=Response,
    openapi_extra=body_schema(ResponseRequest, no_effect=NO_EFFECT, refused=REFUSED),
)
async def create_response(http: HttpRequest, services: ServicesDep, tenant: TenantDep) -> Response:
    """Also as a stream, or in the background: then it goes on without its client, and is read by its id."""
    raw = await json_bytes(http)
    body = parse_response(raw, is_strict=is_strict(http.headers, default=services.settings.strict_fields))
    options = _options(http, services, tenant, body)
    options = replace(options, body_digest=digest_of("response", raw) if options.key_hash else "")
    require_class(tenant, body.service_class)
    previous = await _previous(services, tenant, body)
    before = conversation_of(previous) if previous is not None else []
    size_bytes = len(raw) + sum(len(orjson.dumps(item)) for item in before)

    async def attempt(target: Target, trial: AdmissionOptions) -> _Taken:
        convert = partial(response_request, body, before, target)
        converted = await services.text_pool.run(size_bytes, convert, is_heavy=body.is_heavy)
        trial = replace(trial, view=encode_response_view(converted.view))
        return await _submitted(http, services, body, target, converted, trial)

    made_before = previous.revision if previous is not None else ""
    taken = await first_with_room(http, services, body.model, options, attempt, made_before=made_before)
    return await _answer(http, await _run_of(services, taken), taken.placed, body)


@router.post(
    "/v1/responses/input_tokens",
    openapi_extra=body_schema(Prompted, no_effect={"reasoning": NO_EFFECT["reasoning"]}, refused=REFUSED),
)
async def input_tokens(http: HttpRequest, services: ServicesDep, tenant: TenantDep) -> Response:
    """How many tokens the prompt of such a request has; nothing is asked of the model."""
    raw = await json_bytes(http)
    body = parse_prompted(raw)
    target = await target_for(http, services, tenant, body.model)
    previous = await _previous(services, tenant, body)
    before = conversation_of(previous) if previous is not None else []
    num_tokens = await services.text_pool.run(len(raw), partial(num_input_tokens, body, before, target))
    return JSONResponse({"object": "response.input_tokens", "input_tokens": num_tokens})


def _options(http: HttpRequest, services: Services, tenant: Tenant, body: ResponseRequest) -> AdmissionOptions:
    """In the background there is no client that waits for a first byte."""
    options = options_of(http, services, tenant, body.deadline_ms)
    if not body.background:
        return options
    return replace(options, detached=True, start_deadline_ms=round(services.settings.start_deadline_s * 1000))


async def _previous(services: Services, tenant: Tenant, body: Prompted) -> StoredResponse | None:
    """The response that a conversation goes on from."""
    if body.previous_response_id is None:
        return None
    return await services.responses.previous(body.previous_response_id, tenant.name)


async def _submitted(
    http: HttpRequest, services: Services, body: ResponseRequest, target: Target, converted: ConvertedResponse,
    options: AdmissionOptions,
) -> _Taken:  # fmt: skip
    """One that joins another run, by its idempotency key, is that other response."""
    request = converted.request
    stored: StoredResponse | None = None
    if body.store:
        stored = StoredResponse(
            id=response_id(request.request_id),
            tenant=request.tenant,
            request_id=request.request_id,
            revision=request.model,
            is_background=body.background,
            request=options.view,
            input=orjson.dumps(converted.items).decode(),
            created_at_ms=now_ms(),
        )
        await services.responses.keep(stored)
    try:
        placed = await submit(http, services, request, options)
    except BaseException:
        if stored is not None:
            await services.responses.take_back(stored)
        raise
    if stored is not None and placed.request_id != request.request_id:
        await services.responses.take_back(stored)
        new_id = response_id(placed.request_id)
        stored = replace(stored, id=new_id, request_id=placed.request_id, revision=placed.model)
    return _Taken(placed, target, converted, stored)


async def _run_of(services: Services, taken: _Taken) -> Run:
    """As its client sees it; one that joined the run of another model as that was asked."""
    placed = taken.placed
    view = decode_response_view(await view_joined(services, taken.target, placed)) or taken.converted.view
    token_bytes = await token_bytes_of(services, taken.target, placed)
    events = ResponseEvents(view, placed.request_id, token_bytes=token_bytes)
    return Run(services, placed.request_id, events, taken.stored)


async def _answer(http: HttpRequest, run: Run, placed: Placed, body: ResponseRequest) -> Response:
    http.state.reply_headers["x-request-id"] = placed.request_id
    if placed.durability is not None:
        http.state.reply_headers[DURABILITY_HEADER] = placed.durability
    if body.stream:
        if body.background:
            await _watch_too(run)
        position = QueuePosition(run.services.dispatcher, placed.request_id)
        return await live_stream(run, opening=position.opening(placed.place))
    if body.background and run.stored is not None:
        run.services.responses.watch(run.stored)
        is_joined = placed.place is None
        stored = await run.services.responses.brought_up_to_date(run.stored) if is_joined else run.stored
        return JSONResponse(response_of(stored), headers=place_headers(placed.place))
    await finished(http, run)
    headers = place_headers(placed.place) | await work_facts(run.services.dispatcher, placed)
    return Response(orjson.dumps(run.events.response()), media_type="application/json", headers=headers)


async def _watch_too(run: Run) -> None:
    """Beside its client, who may leave. Where that cannot be begun now, the finisher ends it."""
    assert run.stored is not None
    try:
        await run.services.dispatcher.join(run.request_id, run.stored.tenant)
    except HeadraceError:
        return
    run.services.responses.watch(run.stored)
