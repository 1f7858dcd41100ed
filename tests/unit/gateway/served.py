"""The gateway's surface around fakes, on a real loopback port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from gateway.http.connection import Abortable
from gateway.http.server import ReceiveLimits, protocol_within
from shared.config import GatewaySettings
from tests.unit.gateway.fakes import FakeDispatcher, build_app


@asynccontextmanager
async def serving(
    dispatcher: FakeDispatcher, *, receive_timeout_s: float = 30.0, **settings: Any
) -> AsyncGenerator[str]:
    app = build_app(dispatcher, GatewaySettings.model_validate(settings))
    async with serving_app(app, receive_timeout_s=receive_timeout_s) as url:
        yield url


@asynccontextmanager
async def serving_app(app: ASGIApp, *, receive_timeout_s: float = 30.0) -> AsyncGenerator[str]:
    limits = ReceiveLimits(receive_timeout_s=receive_timeout_s)
    config = uvicorn.Config(
        Abortable(app), http=protocol_within(limits), log_config=None, lifespan="off", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:  # noqa: ASYNC110  the server has no event for it
            await asyncio.sleep(0.001)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await task
