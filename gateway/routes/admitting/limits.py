"""Into the queue within a tenant's limits: what its key may ask for, its rate limits, and their headers.

A model that a key may not use does not exist for it: the same 404, and no list that names it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import msgspec
from starlette.requests import Request as HttpRequest

from gateway.dependencies import Services
from gateway.dispatch import Placed
from gateway.http.inside import Inside, inside_of
from gateway.http.options import AdmissionOptions, part_key
from gateway.models.fleet import model_not_found
from gateway.quota import ratelimit_headers, refusal_of, tokens_of
from shared.access.entries import Tenant
from shared.errors import HeadraceError, ModelNotFound, PermissionDenied
from shared.schemas import Request, ServiceClass


def require_model(services: Services, tenant: Tenant, name: str) -> None:
    """Raises ModelNotFound, also where the key may not use it, and Unavailable while that is not known."""
    try:
        services.catalogue.check(name)
        is_allowed = tenant.may_use(name)
    except ModelNotFound:
        is_allowed = False
    if not is_allowed:
        raise model_not_found(name, names_for(services, tenant))


def names_for(services: Services, tenant: Tenant) -> list[str]:
    """Models and routes that a key may use."""
    return [name for name in services.catalogue.names() if tenant.may_use(name)]


def require_class(tenant: Tenant, service_class: ServiceClass) -> None:
    if tenant.service_classes and service_class not in tenant.service_classes:
        allowed = ", ".join(tenant.service_classes)
        raise PermissionDenied(
            f"this API key may not use the service tier '{service_class}'; allowed: {allowed}", param="service_tier"
        )


async def submit(http: HttpRequest, services: Services, request: Request, options: AdmissionOptions) -> Placed:
    """As the dispatcher's; with the rate limits' headers on the reply. Raises RateLimited, Overloaded, Unavailable."""
    return (await submit_all(http, services, [(request, options)]))[0]


async def submit_all(
    http: HttpRequest, services: Services, parts: Sequence[tuple[Request, AdmissionOptions]]
) -> list[Placed]:
    """As `submit`, of all parts of one request or of none: the refusal of one takes back those before it.

    Each part has an idempotency key of its own, made from the one of all. A request of our own making
    (http/inside.py) has its class, key and deadline from there.
    """
    inside = inside_of(http.scope)
    placed: list[tuple[Request, Placed]] = []
    try:
        for index, (request, options) in enumerate(parts):
            if inside is not None:
                request = msgspec.structs.replace(request, service_class=inside.service_class)
                options = _options_of(inside, options)
            # What is safe with the last one is safe of those before it; with a key, the last may be one joined.
            is_safe_later = index < len(parts) - 1 and not options.key_hash
            options = replace(
                options,
                key_hash=part_key(options.key_hash, index),
                is_kept_elsewhere=options.is_kept_elsewhere or is_safe_later,
            )
            placed.append((request, await _submit(http, services, request, options)))
    except BaseException:
        await asyncio.gather(*(_take_back(services, *one) for one in placed), return_exceptions=True)
        raise
    if inside is not None:
        inside.request_id = placed[0][1].request_id
        inside.placed.set()
    return [place for _, place in placed]


async def _take_back(services: Services, request: Request, placed: Placed) -> None:
    """A run that was there before, and was joined, goes on."""
    if placed.request_id == request.request_id:
        await services.dispatcher.withdraw(placed.request_id)
        return
    async with services.dispatcher.follow(placed.request_id):
        pass


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
