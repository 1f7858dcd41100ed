"""For probes and scrapers: alive, ready, metrics."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import JSONResponse, Response

from gateway.dependencies import ServicesDep

router = APIRouter(tags=["health"])


@router.get("/health/live")
async def live() -> Response:
    """The process answers. Says nothing of Redis: restarting a gateway does not mend that."""
    return JSONResponse({"status": "ok"})


@router.get("/health/ready")
async def ready(services: ServicesDep, min_workers: int = 0) -> Response:
    """Requests can be accepted. `min_workers` also asks for so many live workers: a launcher waits for them."""
    is_ready, reason = await services.readiness.is_ready(min_workers)
    if is_ready:
        catalogue = services.catalogue
        return JSONResponse({"status": "ok", "workers": catalogue.workers(), "paused": catalogue.paused()})
    return JSONResponse({"status": "unavailable", "reason": reason}, status_code=503)


@router.get("/metrics")
async def metrics(services: ServicesDep) -> Response:
    return Response(generate_latest(services.metrics_registry), media_type=CONTENT_TYPE_LATEST)
