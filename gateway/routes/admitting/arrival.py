"""What arrives with a request that asks for an answer: its JSON body, and what its headers ask of admission."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request as HttpRequest

from gateway.dependencies import Services
from gateway.http.options import AdmissionOptions, admission_options
from shared.access.entries import Tenant
from shared.errors import UnsupportedMediaType


async def json_bytes(http: HttpRequest) -> bytes:
    """Only `application/json`: a web page can then not post here without asking the browser's leave first."""
    kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise UnsupportedMediaType("the content-type must be application/json", param="content-type")
    if http.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMediaType("the body must not be compressed", param="content-encoding")
    return await http.body()


def options_of(http: HttpRequest, services: Services, tenant: Tenant, deadline_ms: int | None) -> AdmissionOptions:
    """The nearer of two deadlines counts: the header's and the body's."""
    options = admission_options(http.headers, services.settings.start_deadline_s)
    deadlines = [deadline for deadline in (options.deadline_ms, deadline_ms) if deadline]
    return replace(options, deadline_ms=min(deadlines, default=0), tenant=tenant)
