"""Files: the inputs and outputs of batches. Uploads go to the file store as they come, downloads from it.

A file of another tenant does not exist.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from gateway.batches.protocol import file_object, list_object
from gateway.dependencies import ServicesDep, TenantDep
from gateway.http.download import Download
from gateway.store.paging import Page

router = APIRouter(prefix="/v1/files", tags=["files"])
Id = Annotated[str, Path(max_length=128)]
_UPLOAD: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["purpose", "file"],
                    "properties": {
                        "purpose": {"type": "string", "enum": ["batch"]},
                        "file": {"type": "string", "format": "binary"},
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2592000},
                    },
                }
            }
        },
    }
}


@router.post("", response_class=Response, openapi_extra=_UPLOAD)
async def upload_file(http: HttpRequest, services: ServicesDep, tenant: TenantDep) -> Response:
    kind = http.headers.get("content-type", "")
    return JSONResponse(file_object(await services.library.receive(tenant.name, kind, http.stream())))


@router.get("")
async def list_files(
    services: ServicesDep,
    tenant: TenantDep,
    purpose: Annotated[Literal["", "batch", "batch_output"], Query()] = "",
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Annotated[Literal["asc", "desc"], Query()] = "desc",
    after: Annotated[str, Query(max_length=128)] = "",
) -> Response:
    page = await services.library.page(tenant.name, Page(limit, after, order == "asc"), purpose)
    return JSONResponse(list_object([file_object(file) for file in page.items], has_more=page.has_more))


@router.get("/{file_id}")
async def get_file(file_id: Id, services: ServicesDep, tenant: TenantDep) -> Response:
    return JSONResponse(file_object(await services.library.find(file_id, tenant.name)))


@router.delete("/{file_id}")
async def delete_file(file_id: Id, services: ServicesDep, tenant: TenantDep) -> Response:
    """Not the input of a batch under way."""
    await services.library.remove(file_id, tenant.name)
    return JSONResponse({"id": file_id, "object": "file", "deleted": True})


@router.get("/{file_id}/content", response_class=Response)
async def file_content(file_id: Id, services: ServicesDep, tenant: TenantDep) -> Response:
    file, chunks = await services.library.open(file_id, tenant.name)
    return Download(
        chunks,
        num_bytes=file.num_bytes,
        stall_timeout_s=services.settings.stall_timeout_s,
        headers={"content-disposition": "attachment"},
    )
