"""OpenAI's endpoints: convert in, call one method, convert out.

Everything that can refuse a request (body, model, prompt length, admission) happens before a response is
begun, so a refusal always has its status.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from gateway.dependencies import Services, ServicesDep, TenantDep
from gateway.dispatch import Placed
from gateway.http.connection import while_connected
from gateway.http.options import AdmissionOptions, digest_of, is_strict
from gateway.http.sse import EventStream
from gateway.openai.chunks import ChunkStream, MergedChunks
from gateway.openai.convert import Converted, Target, chat_request, completion_requests
from gateway.openai.fields import UNSUPPORTED_IN_CHAT, UNSUPPORTED_IN_COMPLETIONS, documented
from gateway.openai.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    EmbeddingRequest,
    GenerationRequest,
    parse_chat,
    parse_completion,
    parse_embedding,
)
from gateway.openai.replies import MergedReply, Reply
from gateway.openai.view import Endpoint, View, decode_view, encode_view
from gateway.routes.admitting.arrival import json_bytes, options_of
from gateway.routes.admitting.limits import names_for, require_class, require_model, submit_all
from gateway.routes.admitting.serving import first_with_room, token_bytes_of, view_joined
from gateway.routes.delivery import QueuePosition, opened_events, plain_body, work_facts
from gateway.routes.documentation import body_schema
from gateway.routes.standing import DURABILITY_HEADER, place_headers
from gateway.routes.together import followed_together
from shared.access.entries import Tenant
from shared.errors import UnsupportedParameter
from shared.schemas import ModelCard

router = APIRouter(tags=["openai"])


@dataclass(frozen=True, slots=True)
class _Taken:
    """Requests in a queue, one a prompt, as their client sees them, and for whom they were converted."""

    all_placed: Sequence[Placed]
    views: Sequence[View]
    target: Target

    @property
    def placed(self) -> Placed:
        """The first, whose name all have."""
        return self.all_placed[0]


@router.post(
    "/v1/chat/completions",
    response_class=Response,
    openapi_extra=body_schema(ChatCompletionRequest, **documented(UNSUPPORTED_IN_CHAT)),
)
async def chat_completions(http: HttpRequest, services: ServicesDep, tenant: TenantDep) -> Response:
    raw = await json_bytes(http)
    body = parse_chat(raw, is_strict=is_strict(http.headers, default=services.settings.strict_fields))
    return await _generate(http, services, tenant, body, lambda target: [chat_request(body, target)], "chat")


@router.post(
    "/v1/completions",
    response_class=Response,
    openapi_extra=body_schema(CompletionRequest, **documented(UNSUPPORTED_IN_COMPLETIONS)),
)
async def completions(http: HttpRequest, services: ServicesDep, tenant: TenantDep) -> Response:
    raw = await json_bytes(http)
    body = parse_completion(raw, is_strict=is_strict(http.headers, default=services.settings.strict_fields))
    return await _generate(http, services, tenant, body, partial(completion_requests, body), "completion")


@router.post("/v1/embeddings", openapi_extra=body_schema(EmbeddingRequest, done="checked"))
async def embeddings(http: HttpRequest, services: ServicesDep, tenant: TenantDep) -> Response:
    """Always refused: each served model writes text, and none pools what it read into a vector."""
    body = parse_embedding(await json_bytes(http))
    require_model(services, tenant, body.model)
    name = services.catalogue.card(body.model).name
    raise UnsupportedParameter(
        f"model: '{name}' writes text and makes no embedding; ask a model that does", param="model"
    )


@router.get("/v1/models")
async def list_models(services: ServicesDep, tenant: TenantDep) -> Response:
    """Those its key may use, and the routes that lead to models."""
    names = names_for(services, tenant)
    return JSONResponse({"object": "list", "data": [_model(name, services.catalogue.card(name)) for name in names]})


@router.get("/v1/models/{name:path}")
async def get_model(name: str, services: ServicesDep, tenant: TenantDep) -> Response:
    require_model(services, tenant, name)
    return JSONResponse(_model(name, services.catalogue.card(name)))


async def _generate(
    http: HttpRequest,
    services: Services,
    tenant: Tenant,
    body: GenerationRequest,
    to_requests: Callable[[Target], Sequence[Converted]],
    endpoint: Endpoint,
) -> Response:
    options = options_of(http, services, tenant, body.deadline_ms)
    require_class(tenant, body.service_class)
    raw = await http.body()
    options = replace(options, body_digest=digest_of(endpoint, raw) if options.key_hash else "")

    async def attempt(target: Target, trial: AdmissionOptions) -> _Taken:
        converted = await services.text_pool.run(len(raw), partial(to_requests, target), is_heavy=body.is_heavy)
        parts = [(one.request, replace(trial, view=encode_view(one.view))) for one in converted]
        return _Taken(await submit_all(http, services, parts), [one.view for one in converted], target)

    taken = await first_with_room(http, services, body.model, options, attempt)
    views, placed = await _views_of(services, taken), taken.all_placed
    identity = (taken.placed.request_id, taken.placed.model, await token_bytes_of(services, taken.target, taken.placed))
    http.state.reply_headers["x-request-id"] = taken.placed.request_id
    if placed[-1].durability is not None:
        http.state.reply_headers[DURABILITY_HEADER] = placed[-1].durability
    if body.stream:
        return await _stream(services, [view.chunks(*identity) for view in views], placed, tenant)
    return await _plain(http, services, [view.reply(*identity) for view in views], placed, tenant)


async def _views_of(services: Services, taken: _Taken) -> list[View]:
    """Where a run of another model was joined, as that is seen."""
    if taken.placed.model == taken.target.card.revision:
        return list(taken.views)
    joined = [decode_view(await view_joined(services, taken.target, one)) for one in taken.all_placed]
    return [theirs or ours for theirs, ours in zip(joined, taken.views, strict=True)]


async def _stream(
    services: Services, chunks: Sequence[ChunkStream], placed: Sequence[Placed], tenant: Tenant
) -> Response:
    """Comments tell of the last prompt: while it waits, so may others."""
    settings, dispatcher = services.settings, services.dispatcher
    position = QueuePosition(dispatcher, placed[-1].request_id)
    opening = position.opening(placed[-1].place)
    if len(placed) == 1:
        events = await opened_events(dispatcher.follow(placed[0].request_id), chunks[0], opening=opening)
    else:
        following = followed_together(dispatcher, [one.request_id for one in placed], tenant.name)
        events = await opened_events(following, MergedChunks(chunks), opening=opening)
    return EventStream(
        events, keepalive_s=settings.keepalive_s, stall_timeout_s=settings.stall_timeout_s, comment=position
    )


async def _plain(
    http: HttpRequest, services: Services, replies: Sequence[Reply], placed: Sequence[Placed], tenant: Tenant
) -> Response:
    """Several prompts may have several workers, whom no header names."""
    dispatcher, headers = services.dispatcher, place_headers(placed[-1].place)
    if len(placed) == 1:
        work = plain_body(dispatcher.follow(placed[0].request_id), replies[0])
        body = await while_connected(http.receive, work)
        headers |= await work_facts(dispatcher, placed[0])
    else:
        following = followed_together(dispatcher, [one.request_id for one in placed], tenant.name)
        body = await while_connected(http.receive, plain_body(following, MergedReply(replies)))
    return Response(body, media_type="application/json", headers=headers)


def _model(name: str, card: ModelCard) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": card.created_s,
        "owned_by": "headrace",
        "root": card.parent or card.name,
        "parent": card.parent or None,
        "max_model_len": min(card.context_length, card.max_request_tokens),
    }
