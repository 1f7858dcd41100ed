"""Batches: made from a file of requests, answered in files. A batch of another tenant does not exist."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from gateway.batches.protocol import BatchRequest, batch_object, list_object, parse_batch
from gateway.dependencies import ServicesDep, TenantDep
from gateway.routes.admitting.arrival import json_bytes
from gateway.routes.documentation import body_schema
from gateway.store.paging import Page

router = APIRouter(prefix="/v1/batches", tags=["batches"])
Id = Annotated[str, Path(max_length=128)]


@router.post("", response_class=Response, openapi_extra=body_schema(BatchRequest))
async def create_batch(http: HttpRequest, services: ServicesDep, tenant: TenantDep) -> Response:
    """Durable when this answers; its lines are looked at, and computed, in the background."""
    body = parse_batch(await json_bytes(http))
    return JSONResponse(batch_object(await services.batches.make(tenant, body)))


@router.get("")
async def list_batches(
    services: ServicesDep,
    tenant: TenantDep,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: Annotated[str, Query(max_length=128)] = "",
) -> Response:
    page = await services.batches.page(tenant.name, Page(limit, after))
    return JSONResponse(list_object([batch_object(batch) for batch in page.items], has_more=page.has_more))


@router.get("/{batch_id}")
async def get_batch(batch_id: Id, services: ServicesDep, tenant: TenantDep) -> Response:
    return JSONResponse(batch_object(await services.batches.find(batch_id, tenant.name)))


@router.post("/{batch_id}/cancel")
async def cancel_batch(batch_id: Id, services: ServicesDep, tenant: TenantDep) -> Response:
    """`cancelling` until no line is under way any more, then `cancelled`."""
    return JSONResponse(batch_object(await services.batches.cancel(batch_id, tenant.name)))
