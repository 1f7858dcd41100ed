"""Tokenizers over HTTP: text to tokens and back, and what a chat request's prompt would be. Nothing is queued.

Evaluation tools ask these at the root of the server, often without a model: then it is the only one that their key may
use.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from gateway.dependencies import Services, ServicesDep, TenantDep
from gateway.http.options import is_strict
from gateway.openai.fields import UNSUPPORTED_IN_CHAT, documented
from gateway.openai.protocol import ChatCompletionRequest, parse_chat
from gateway.openai.tokens.protocol import (
    UNSUPPORTED_IN_TOKENIZE,
    DetokenizeRequest,
    TokenizeRequest,
    parse_detokenize,
    parse_tokenize,
)
from gateway.openai.tokens.rendering import rendered
from gateway.openai.tokens.text import detokenized, info_of, tokenized
from gateway.routes.admitting.arrival import json_bytes, options_of
from gateway.routes.admitting.limits import names_for, require_class
from gateway.routes.admitting.serving import target_for
from gateway.routes.documentation import body_schema
from shared.access.entries import Tenant
from shared.errors import InvalidRequest, ModelNotFound, Unavailable

router = APIRouter(tags=["tokenizer"])


@router.post(
    "/v1/chat/completions/render",
    response_class=Response,
    openapi_extra=body_schema(ChatCompletionRequest, **documented(UNSUPPORTED_IN_CHAT)),
)
async def render_chat(http: HttpRequest, services: ServicesDep, tenant: TenantDep) -> Response:
    """The prompt that such a request would have, after all its checks but those of rate and room."""
    raw = await json_bytes(http)
    body = parse_chat(raw, is_strict=is_strict(http.headers, default=services.settings.strict_fields))
    options_of(http, services, tenant, body.deadline_ms)
    target = await target_for(http, services, tenant, body.model)
    require_class(tenant, body.service_class)
    return await _worked(services, len(raw), partial(rendered, body, target), is_heavy=body.is_heavy)


@router.post(
    "/tokenize",
    response_class=Response,
    openapi_extra=body_schema(TokenizeRequest, **documented(UNSUPPORTED_IN_TOKENIZE)),
)
async def tokenize(http: HttpRequest, services: ServicesDep, tenant: TenantDep) -> Response:
    """Of a text, or of messages as a chat would have them. Without `model`: the only one."""
    raw = await json_bytes(http)
    body = parse_tokenize(raw, is_strict=is_strict(http.headers, default=services.settings.strict_fields))
    target = await target_for(http, services, tenant, body.model or _only(services, tenant))
    return await _worked(services, len(raw), partial(tokenized, body, target), is_heavy=body.is_heavy)


@router.post("/detokenize", response_class=Response, openapi_extra=body_schema(DetokenizeRequest))
async def detokenize(http: HttpRequest, services: ServicesDep, tenant: TenantDep) -> Response:
    """Special tokens have their text. Without `model`: the only one."""
    raw = await json_bytes(http)
    body = parse_detokenize(raw)
    target = await target_for(http, services, tenant, body.model or _only(services, tenant))
    return await _worked(services, len(raw), partial(detokenized, body, target))


@router.get("/tokenizer_info")
async def tokenizer_info(
    http: HttpRequest, services: ServicesDep, tenant: TenantDep, model: str | None = None
) -> Response:
    """Special tokens and chat template. Without `model`: of the only one."""
    target = await target_for(http, services, tenant, model or _only(services, tenant))
    return JSONResponse(info_of(target.tokenizer))


def _only(services: Services, tenant: Tenant) -> str:
    """A name of the one model that a key may use. Raises ModelNotFound, Unavailable, InvalidRequest for several."""
    if not services.catalogue.names():
        raise Unavailable("no model is registered yet")
    names = names_for(services, tenant)
    if not names:
        raise ModelNotFound("no model that this API key may use is served", param="model")
    if len({services.catalogue.card(name).name for name in names}) > 1:
        raise InvalidRequest(f"model: must be one of those served: {', '.join(names)}"[:1000], param="model")
    return services.catalogue.card(names[0]).name if len(names) > 1 else names[0]


async def _worked(
    services: Services, size_bytes: int, work: Callable[[], bytes], *, is_heavy: bool = False
) -> Response:
    body = await services.text_pool.run(size_bytes, work, is_heavy=is_heavy)
    return Response(body, media_type="application/json")
