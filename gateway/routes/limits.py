"""Into the queue within a tenant's limits: what its key may ask for, its rate limits, and their headers."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from starlette.requests import Request as HttpRequest

from gateway.dependencies import Services
from gateway.dispatch import Placed
from gateway.http.inside import Inside, inside_of
from gateway.http.options import AdmissionOptions
from gateway.quota import ratelimit_headers, refusal_of, tokens_of
from shared.access.entries import Tenant
from shared.errors import HeadraceError, PermissionDenied
from shared.schemas import Request, ServiceClass


def require_model(tenant: Tenant, model: str) -> None:
    """Asked before the model is looked up, so that a refusal does not tell whether it exists."""
    if not tenant.may_use(model):
        allowed = ", ".join(tenant.models)
        raise PermissionDenied(f"this API key may not use the model '{model[:200]}'; allowed: {allowed}", param="model")


def require_class(tenant: Tenant, service_class: ServiceClass) -> None:
    if tenant.service_classes and service_class not in tenant.service_classes:
        allowed = ", ".join(tenant.service_classes)
        raise PermissionDenied(
            f"this API key may not use the service tier '{service_class}'; allowed: {allowed}", param="service_tier"
        )


async def submit(http: HttpRequest, services: Services, request: Request, options: AdmissionOptions) -> Placed:
    """As the dispatcher's; with the rate limits' headers on the reply. Raises RateLimited, Overloaded, Unavailable.

    A request of our own making (http/inside.py) has its class, key and deadline from there.
    """
    inside = inside_of(http.scope)
    if inside is None:
        return await _submit(http, services, request, options)
    request = msgspec.structs.replace(request, service_class=inside.service_class)
    placed = await _submit(http, services, request, _options_of(inside, options))
    inside.request_id = placed.request_id
    inside.placed.set()
    return placed


def _options_of(inside: Inside, options: AdmissionOptions) -> AdmissionOptions:
    deadlines = [deadline for deadline in (inside.deadline_ms, options.deadline_ms) if deadline]
    return replace(
        options, start_deadline_ms=0, deadline_ms=min(deadlines), detached=True, is_kept_elsewhere=True,
        key_hash=inside.key_hash, body_digest=inside.body_digest,
    )  # fmt: skip


async def _submit(http: HttpRequest, services: Services, request: Request, options: AdmissionOptions) -> Placed:
    tenant = options.tenant
    standing = await services.dispatcher.reserve(tenant, request)
    if standing is None:
        return await services.dispatcher.submit(request, options)
    headers = ratelimit_headers(standing)
    http.state.reply_headers.update(headers)
    refusal = refusal_of(standing, tenant, tokens_of(request))
    if refusal is None:
        try:
            return await services.dispatcher.submit(request, options)
        except HeadraceError:
            for name in headers:  # it pays nothing, so they do not hold any more
                del http.state.reply_headers[name]
            raise
    # A client that comes back to a run of its own is not asking for more.
    joined = await services.dispatcher.join_run(request, options)
    if joined is None:
        raise refusal
    return joined
