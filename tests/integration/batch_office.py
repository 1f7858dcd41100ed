"""Batches over a real store and a stand-in for the gateway's own endpoint, which does as a test says.

`Desktop` is one gateway's part of it; several on one folder are gateways that share a store.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from gateway.batches.crew import Crew
from gateway.batches.desk import Desk
from gateway.batches.means import Around, Means
from gateway.batches.protocol import BatchRequest
from gateway.files.blobs import Blobs
from gateway.files.library import Library
from gateway.http.inside import Inside, inside_of
from gateway.store.batch_rows import ACTIVE, BatchRows, StoredBatch
from gateway.store.batch_runs import BatchRuns
from gateway.store.database import Database
from gateway.store.file_rows import FileRows
from shared.access.entries import ANONYMOUS, Tenant
from shared.observability import GatewayMetrics
from shared.servers.store_address import parse_store

CHAT = "/v1/chat/completions"
LEASE_S = 0.4
Reply = tuple[int, dict[str, str], Any]


def line(custom_id: str, **fields: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": {"model": "m"}, **fields}


@dataclass
class Endpoint:
    """An ASGI app. `decide` gives the reply to a body, or None: it is in the queue until cancelled or left.

    `asked` has every call; `runs` each key's request once, as the queue would.
    """

    decide: Callable[[dict[str, Any], int], Reply | None] = lambda body, times: (200, {}, {"n": body.get("n")})
    asked: list[Inside] = field(default_factory=list)
    runs: dict[str, str] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        inside = inside_of(scope)
        assert inside is not None
        body = json.loads((await receive())["body"])
        self.asked.append(inside)
        times = sum(other.key_hash == inside.key_hash for other in self.asked)
        reply = self.decide(body, times)
        if reply is None or reply[0] == 200:
            inside.request_id = self.runs.setdefault(inside.key_hash, f"r{len(self.runs)}")
            inside.placed.set()
        async with self.changed:
            self.changed.notify_all()
        if reply is None:
            reply = await self._until_over(inside, receive)
        if reply is not None:
            await self._send(send, reply, inside.request_id)

    async def _until_over(self, inside: Inside, receive: Any) -> Reply | None:
        left = asyncio.create_task(receive())
        try:
            while not left.done():
                if inside.request_id in self.cancelled:
                    return 499, {}, {"error": {"code": "request_cancelled"}}
                await asyncio.wait({left}, timeout=0.01)
            return None
        finally:
            left.cancel()

    async def _send(self, send: Any, reply: Reply, request_id: str) -> None:
        status, headers, body = reply
        fields = [(name.encode(), value.encode()) for name, value in {**headers, "x-request-id": request_id}.items()]
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})

    async def until(self, is_true: Callable[[], bool]) -> None:
        async with self.changed:
            await asyncio.wait_for(self.changed.wait_for(is_true), 10)

    async def cancel(self, request_id: str, tenant: str) -> None:
        self.cancelled.add(request_id)

    async def cancel_run(self, tenant: str, key_hash: str, digest: str) -> None:
        if key_hash in self.runs:
            self.cancelled.add(self.runs[key_hash])


@dataclass
class Desktop:
    database: Database
    runs: BatchRuns
    library: Library
    desk: Desk
    crew: Crew
    tenant: Tenant = ANONYMOUS

    async def upload(self, data: bytes) -> str:
        async def chunks() -> AsyncIterator[bytes]:
            head = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x\r\nContent-Disposition: '
            yield head + b'form-data; name="file"; filename="in.jsonl"\r\n\r\n' + data + b"\r\n--x--\r\n"

        return (await self.library.receive(self.tenant.name, "multipart/form-data; boundary=x", chunks())).id

    async def make(self, *lines: dict[str, Any] | bytes) -> StoredBatch:
        raw = [item if isinstance(item, bytes) else json.dumps(item).encode() for item in lines]
        body = {"endpoint": CHAT, "completion_window": "24h", "input_file_id": await self.upload(b"\n".join(raw))}
        return await self.desk.make(self.tenant, BatchRequest.model_validate(body))

    async def over(self, batch: StoredBatch) -> StoredBatch:
        async with asyncio.timeout(15):
            while (now := await self.desk.find(batch.id, batch.tenant)).status in ACTIVE:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return now

    async def lines_of(self, file_id: str) -> dict[str, dict[str, Any]]:
        """By custom_id; each once."""
        if not file_id:
            return {}
        _, chunks = await self.library.open(file_id, self.tenant.name)
        answers = [json.loads(text) for text in b"".join([chunk async for chunk in chunks]).splitlines()]
        assert len({answer["custom_id"] for answer in answers}) == len(answers)
        return {answer["custom_id"]: answer for answer in answers}


@contextlib.asynccontextmanager
async def gateway_on(
    folder: Path,
    endpoint: Endpoint,
    name: str = "g",
    *,
    room: int = 50,
    tenant_of: Callable[[str], Tenant] = lambda _: ANONYMOUS,
    check_model: Callable[[str], object] = lambda _: None,
) -> AsyncGenerator[Desktop]:
    database = Database(parse_store("", str(folder)))
    await database.start()
    blobs, rows, runs = Blobs(str(folder / "files")), BatchRows(database), BatchRuns(database)
    app: Any = endpoint
    around = Around(app, tenant_of, check_model, endpoint.cancel, endpoint.cancel_run)
    metrics = GatewayMetrics(CollectorRegistry())
    means = Means(around, runs, blobs, asyncio.Semaphore(room), metrics, max_line_bytes=10_000, lease_s=LEASE_S)
    crew = Crew(means, name)
    library = Library(FileRows(database), rows, blobs, max_file_bytes=1_000_000)
    desk = Desk(rows, library, [CHAT], crew.nudge, keep_s=3600)
    crew.start()
    try:
        yield Desktop(database, runs, library, desk, crew)
    finally:
        await crew.stop()
        await database.stop()
