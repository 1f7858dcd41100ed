"""Files and batches of one gateway process, put together: what clients ask, what is kept, who computes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from gateway.batches.crew import Crew
from gateway.batches.desk import Desk
from gateway.batches.means import Around, Means
from gateway.batches.protocol import ENDPOINTS
from gateway.files.blobs import Blobs
from gateway.files.library import Library
from gateway.store.batch_rows import BatchRows
from gateway.store.batch_runs import BatchRuns
from gateway.store.database import Database
from gateway.store.file_rows import FileRows
from shared.config import GatewaySettings
from shared.observability import GatewayMetrics


@dataclass(frozen=True, slots=True)
class Office:
    """start; stop, before what it asks stops."""

    library: Library
    desk: Desk
    crew: Crew

    def start(self) -> None:
        self.library.start()
        self.crew.start()

    async def stop(self) -> None:
        await self.crew.stop()
        await self.library.stop()


def build_office(
    settings: GatewaySettings, gateway: str, database: Database, metrics: GatewayMetrics, around: Around
) -> Office:
    """Raises ConfigurationError for a file store that cannot be."""
    blobs = Blobs(settings.file_store_url or str(Path(settings.data_dir, "files").absolute()))
    means = Means(
        around=around,
        runs=BatchRuns(database),
        blobs=blobs,
        room=asyncio.Semaphore(settings.batch_max_in_flight),
        metrics=metrics,
        max_line_bytes=settings.max_body_bytes,
        lease_s=settings.batch_lease_s,
    )
    crew = Crew(means, gateway)
    rows = BatchRows(database)
    library = Library(FileRows(database), rows, blobs, settings.max_file_bytes)
    return Office(library, Desk(rows, library, _endpoints(around), crew.nudge, settings.store_ttl_s), crew)


def _endpoints(around: Around) -> list[str]:
    """Of which there may be batches, as far as this gateway has them."""
    return [path for path in ENDPOINTS if any(_serves(route, path) for route in around.app.routes)]


def _serves(route: BaseRoute, path: str) -> bool:
    scope: Scope = {"type": "http", "path": path, "method": "POST", "headers": [], "root_path": ""}
    return route.matches(scope)[0] is Match.FULL
