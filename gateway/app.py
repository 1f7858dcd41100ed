"""The gateway process: everything is built and connected here, started in order, stopped in reverse.

`create_app` has no effects but building; connections are made when the server starts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import secrets
import socket
import sys
from collections.abc import AsyncGenerator
from importlib.metadata import version

import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from gateway.auth import Authenticator
from gateway.batches.means import Around
from gateway.batches.office import build_office
from gateway.dependencies import Services, TextPool
from gateway.fanout import Fanout
from gateway.http.connection import Abortable
from gateway.http.errors import install_error_handlers
from gateway.http.middleware import install_middleware
from gateway.http.server import ReceiveLimits, protocol_within
from gateway.metering import MeteredDispatcher
from gateway.models.catalogue import Catalogue
from gateway.reference.document import install_document
from gateway.responses.desk import ResponseDesk
from gateway.responses.finisher import Finisher
from gateway.routes import batches, files, health, openai, operator, requests, tokenization
from gateway.routes.responses import creation, stored
from gateway.store.database import Database
from gateway.store.responses import ResponseRows
from gateway.store.retention import Retention
from gateway.upkeep import Upkeep
from shared import faults
from shared.access.keyring import read_key_file
from shared.config import GatewaySettings, load
from shared.errors import ConfigurationError
from shared.observability import GatewayMetrics, configure_logging
from shared.operations.access import Operators
from shared.redis_client import Scripts, connect

KEEPALIVE_S = 75
# Of an upload, around its file.
FORM_BYTES = 65_536
# Each token of a stream makes some objects that end with it; few hold one another.
GC_ALLOCATIONS = 20_000


def create_app(settings: GatewaySettings) -> ASGIApp:
    """The whole gateway as an ASGI app."""
    app = FastAPI(
        title="Headrace",
        version=version("headrace"),
        lifespan=_lifespan,
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.settings = settings
    metrics = app.state.metrics = GatewayMetrics(CollectorRegistry())
    uploads = {"/v1/files": settings.max_file_bytes + FORM_BYTES}
    install_middleware(app, settings.max_body_bytes, settings.cors_origins, longer=uploads, metrics=metrics.http)
    install_error_handlers(app)
    app.include_router(openai.router)
    app.include_router(tokenization.router)
    app.include_router(creation.router)
    app.include_router(stored.router)
    app.include_router(requests.router)
    app.include_router(files.router)
    app.include_router(batches.router)
    app.include_router(health.router)
    app.include_router(operator.router)
    install_document(app)
    return Abortable(app)


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncGenerator[None]:
    settings: GatewaySettings = app.state.settings
    metrics: GatewayMetrics = app.state.metrics
    faults.arm(settings.faults, sleep=asyncio.sleep, on_fault=lambda kind: metrics.faults_injected.labels(kind).inc())
    scripts = Scripts(connect(settings), metrics.process.on_command(metrics.redis_up))
    gateway = f"g-{secrets.token_hex(4)}"
    catalogue = Catalogue(settings, scripts, metrics)
    fanout = Fanout(settings, scripts, gateway, metrics)
    authenticator = Authenticator(settings, scripts)
    dispatcher = MeteredDispatcher(settings, scripts, gateway, fanout, catalogue, metrics)
    upkeep = Upkeep(settings, scripts, gateway, catalogue, metrics)
    text_pool = TextPool(settings.text_threads)
    database = Database(settings.store)
    retention = Retention(database, settings.store_purge_s)
    rows = ResponseRows(database, settings.store_ttl_s)
    desk = ResponseDesk(rows, dispatcher, settings.orphan_grace_ms)
    finisher = Finisher(rows, desk, dispatcher, settings.orphan_grace_ms)
    around = Around(app, authenticator.tenant_by_digest, catalogue.check, dispatcher.cancel, dispatcher.cancel_run)
    office = build_office(settings, gateway, database, metrics, around)
    app.state.services = Services(
        settings, authenticator, catalogue, dispatcher, upkeep, text_pool, metrics.registry, database, desk,
        office.library, office.desk,
    )  # fmt: skip
    operators = app.state.operators = Operators(settings, authenticator.operator_of)
    await database.start()
    retention.start()
    await authenticator.start()
    await upkeep.start()
    await catalogue.start()
    fanout.start()
    dispatcher.start()
    finisher.start()
    office.start()
    try:
        yield
    finally:
        await office.stop()
        await finisher.stop()
        await desk.stop()
        await dispatcher.stop()
        await fanout.stop()
        await catalogue.stop()
        await upkeep.stop()
        await authenticator.stop()
        await operators.stop()
        await retention.stop()
        await database.stop()
        text_pool.close()
        await scripts.client.aclose()


def main() -> None:
    """`headrace gateway`: settings from the environment; exit 2 for a wrong setting."""
    try:
        settings = load(GatewaySettings)
        if settings.keys_file:
            read_key_file(settings.keys_file)
    except ConfigurationError as error:
        print(f"headrace gateway: {error.message}", file=sys.stderr)
        sys.exit(2)
    gc.freeze()  # what is imported stays, and need not be looked at again
    gc.set_threshold(GC_ALLOCATIONS, 20, 20)
    configure_logging("gateway", f"{socket.gethostname()}-{os.getpid()}", settings.log_level)
    uvicorn.run(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=protocol_within(ReceiveLimits(settings.max_header_bytes, settings.receive_timeout_s)),
        ws="none",
        log_config=None,
        access_log=False,
        timeout_keep_alive=KEEPALIVE_S,
        timeout_graceful_shutdown=max(1, round(settings.drain_timeout_s)),
        server_header=False,
    )


if __name__ == "__main__":
    main()
