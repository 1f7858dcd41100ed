"""What runs of batches are given: the store, the bytes, the gateway around them, and their bounds.

Built by the composition root; tests put fakes in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.applications import Starlette

from gateway.files.blobs import Blobs
from gateway.store.batch_runs import BatchRuns
from shared.access.entries import Tenant
from shared.observability import GatewayMetrics


@dataclass(frozen=True, slots=True)
class Around:
    """The gateway: its endpoints, and what it may be asked. All raise HeadraceError.

    `tenant_of`: whose an API key is, by its SHA-256. `check_model`: whether one of this name exists. `cancel`: a
    request by its id, for a tenant. `cancel_run`: for a tenant the run that a key names, by the key's hash and the
    digest of its body.
    """

    app: Starlette
    tenant_of: Callable[[str], Tenant]
    check_model: Callable[[str], object]
    cancel: Callable[[str, str], Awaitable[object]]
    cancel_run: Callable[[str, str, str], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Means:
    """`room`: bounds the lines of all batches that are under way here."""

    around: Around
    runs: BatchRuns
    blobs: Blobs
    room: asyncio.Semaphore
    metrics: GatewayMetrics
    max_line_bytes: int
    lease_s: float
