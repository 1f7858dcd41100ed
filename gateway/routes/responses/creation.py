"""POST /v1/responses, and how many tokens its prompt would have.

What refuses a request does so before anything is begun. A response that is kept is in the store before its request is
in the queue, and its request is in the queue before its first event is written: whatever dies then, it is found.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import orjson
from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from gateway.dependencies import Services, ServicesDep, TenantDep
from gateway.dispatch import Placed
from gateway.http.options import AdmissionOptions, digest_of, is_strict
from gateway.openai.convert import Target
from gateway.openai.logprobs import TokenBytes
from gateway.openai.responses.convert import ConvertedResponse, num_input_tokens, response_request
from gateway.openai.responses.events import ResponseEvents
from gateway.openai.responses.fields import NO_EFFECT, REFUSED
from gateway.openai.responses.items import Item
from gateway.openai.responses.protocol import Prompted, ResponseRequest, parse_prompted, parse_response
from gateway.openai.responses.view import encode_response_view, response_id
from gateway.responses.desk import now_ms
from gateway.responses.reading import response_of
from gateway.routes.arrival import json_bytes, options_of
from gateway.routes.delivery import QueuePosition, work_facts
from gateway.routes.documentation import body_schema
from gateway.routes.limits import require_class, require_model, submit
from gateway.routes.responses.streams import Run, finished, live_stream
from gateway.routes.standing import DURABILITY_HEADER, place_headers
from gateway.store.responses import StoredResponse
from shared.access.entries import Tenant
from shared.errors import HeadraceError

router = APIRouter(tags=["responses"])


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
    require_class(tenant, body.service_class)
    target, before = await _prepared(http, services, tenant, body)
    size_bytes = len(raw) + sum(len(orjson.dumps(item)) for item in before)
    convert = partial(response_request, body, before, target)
    converted = await services.text_pool.run(size_bytes, convert, is_heavy=body.is_heavy)
    digest = digest_of("response", raw) if options.key_hash else ""
    options = replace(options, body_digest=digest, view=encode_response_view(converted.view))
    run, placed = await _submitted(http, services, body, converted, options, target.tokenizer.token_bytes)
    return await _answer(http, run, placed, body)


@router.post(
    "/v1/responses/input_tokens",
    openapi_extra=body_schema(Prompted, no_effect={"reasoning": NO_EFFECT["reasoning"]}, refused=REFUSED),
)
async def input_tokens(http: HttpRequest, services: ServicesDep, tenant: TenantDep) -> Response:
    """How many tokens the prompt of such a request has; nothing is asked of the model."""
    raw = await json_bytes(http)
    body = parse_prompted(raw)
    target, before = await _prepared(http, services, tenant, body)
    num_tokens = await services.text_pool.run(len(raw), partial(num_input_tokens, body, before, target))
    return JSONResponse({"object": "response.input_tokens", "input_tokens": num_tokens})


def _options(http: HttpRequest, services: Services, tenant: Tenant, body: ResponseRequest) -> AdmissionOptions:
    """In the background there is no client that waits for a first byte."""
    options = options_of(http, services, tenant, body.deadline_ms)
    if not body.background:
        return options
    return replace(options, detached=True, start_deadline_ms=round(services.settings.start_deadline_s * 1000))


async def _prepared(http: HttpRequest, services: Services, tenant: Tenant, body: Prompted) -> tuple[Target, list[Item]]:
    """For whom it is converted, and the conversation before it."""
    require_model(tenant, body.model)
    card = services.catalogue.find(body.model)
    tokenizer = await services.catalogue.tokenizer(card)
    before: list[Item] = []
    if body.previous_response_id is not None:
        before = await services.responses.conversation(body.previous_response_id, tenant.name)
    return Target(http.state.request_id, card, tokenizer, services.settings.max_choices, tenant), before


async def _submitted(
    http: HttpRequest,
    services: Services,
    body: ResponseRequest,
    converted: ConvertedResponse,
    options: AdmissionOptions,
    token_bytes: TokenBytes,
) -> tuple[Run, Placed]:
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
        stored = replace(stored, id=response_id(placed.request_id), request_id=placed.request_id)
    events = ResponseEvents(converted.view, placed.request_id, token_bytes=token_bytes)
    return Run(services, placed.request_id, events, stored), placed


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
