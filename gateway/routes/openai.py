"""OpenAI's endpoints: convert in, call one method, convert out.

Everything that can refuse a request (body, model, prompt length, admission) happens before a response is
begun, so a refusal always has its status.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from gateway.dependencies import Services, ServicesDep
from gateway.http.connection import while_connected
from gateway.http.options import admission_options
from gateway.http.sse import EventStream
from gateway.openai.chunks import CHAT_CHUNKS, COMPLETION_CHUNKS, ChunkShape, ChunkStream
from gateway.openai.convert import Target, chat_request, completion_request
from gateway.openai.identity import Identity, identity_of
from gateway.openai.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationRequest,
    parse_chat,
    parse_completion,
)
from gateway.openai.replies import CHAT_REPLY, COMPLETION_REPLY, Reply, ReplyShape
from gateway.routes.delivery import opened_events, plain_body
from gateway.routes.documentation import body_schema
from shared.errors import InvalidRequest
from shared.schemas import ModelCard, Request

router = APIRouter(tags=["openai"])


@dataclass(frozen=True, slots=True)
class Shapes:
    chunks: ChunkShape
    reply: ReplyShape


CHAT = Shapes(CHAT_CHUNKS, CHAT_REPLY)
COMPLETION = Shapes(COMPLETION_CHUNKS, COMPLETION_REPLY)


@router.post("/v1/chat/completions", response_class=Response, openapi_extra=body_schema(ChatCompletionRequest))
async def chat_completions(http: HttpRequest, services: ServicesDep) -> Response:
    raw = await _json_bytes(http)
    body = parse_chat(raw)
    return await _generate(http, services, body, partial(chat_request, body), CHAT)


@router.post("/v1/completions", response_class=Response, openapi_extra=body_schema(CompletionRequest))
async def completions(http: HttpRequest, services: ServicesDep) -> Response:
    raw = await _json_bytes(http)
    body = parse_completion(raw)
    return await _generate(http, services, body, partial(completion_request, body), COMPLETION)


@router.get("/v1/models")
async def list_models(services: ServicesDep) -> Response:
    return JSONResponse({"object": "list", "data": [_model(card) for card in services.catalogue.cards()]})


@router.get("/v1/models/{name:path}")
async def get_model(name: str, services: ServicesDep) -> Response:
    return JSONResponse(_model(services.catalogue.find(name)))


async def _json_bytes(http: HttpRequest) -> bytes:
    """Only `application/json`: a web page can then not post here without asking the browser's leave first."""
    kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise InvalidRequest("the content-type must be application/json", param="content-type")
    return await http.body()


async def _generate(
    http: HttpRequest,
    services: Services,
    body: GenerationRequest,
    to_request: Callable[[Target], Request],
    shapes: Shapes,
) -> Response:
    options = admission_options(http.headers, services.settings.start_deadline_s)
    card = services.catalogue.find(body.model)
    tokenizer = await services.catalogue.tokenizer(card)
    target = Target(http.state.request_id, card, tokenizer, services.settings.max_choices)
    size_bytes = len(await http.body())
    request = await services.text_pool.run(size_bytes, partial(to_request, target))
    await services.dispatcher.submit(request, options)
    identity = identity_of(request.request_id, card)
    if body.stream:
        chunks = ChunkStream(shapes.chunks, identity, n=body.n, include_usage=body.include_usage)
        return await _stream(services, request.request_id, chunks)
    return await _plain(http, services, Reply(shapes.reply, identity, n=body.n), identity)


async def _stream(services: Services, request_id: str, chunks: ChunkStream) -> Response:
    settings = services.settings
    events = await opened_events(services.dispatcher, request_id, chunks)
    return EventStream(events, keepalive_s=settings.keepalive_s, stall_timeout_s=settings.stall_timeout_s)


async def _plain(http: HttpRequest, services: Services, reply: Reply, identity: Identity) -> Response:
    work = plain_body(services.dispatcher, identity.request_id, reply)
    return Response(await while_connected(http.receive, work), media_type="application/json")


def _model(card: ModelCard) -> dict[str, Any]:
    return {
        "id": card.name,
        "object": "model",
        "created": card.created_s,
        "owned_by": "headrace",
        "max_model_len": min(card.context_length, card.max_request_tokens),
    }
