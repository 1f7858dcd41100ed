"""The endpoints of files and batches over a real store: OpenAI's shapes, and each refusal by name."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.access.entries import ANONYMOUS, Tenant
from shared.config import GatewaySettings
from tests.unit.gateway.fakes import build_app, client_of

BATCH = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}


@contextlib.asynccontextmanager
async def api(folder: Path, asking: Tenant = ANONYMOUS) -> AsyncGenerator[httpx.AsyncClient]:
    settings = GatewaySettings.model_validate({"data_dir": str(folder), "max_file_bytes": 5000})
    app = build_app(settings=settings, asking=asking)
    await app.state.services.database.start()
    async with client_of(app) as client:
        yield client
    await app.state.services.database.stop()


async def upload(client: httpx.AsyncClient, data: bytes = b"{}", **fields: str) -> httpx.Response:
    form = {"purpose": "batch", **fields}
    return await client.post("/v1/files", data=form, files={"file": ("in.jsonl", data)})


def stored(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("files/*")]


async def test_a_file_goes_up_and_comes_down(tmp_path: Path) -> None:
    data = bytes(range(256)) * 15
    async with api(tmp_path) as client:
        reply = await upload(client, data, **{"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"})
        file = reply.json()
        assert (file["object"], file["bytes"], file["filename"], file["purpose"]) == ("file", 3840, "in.jsonl", "batch")
        assert file["expires_at"] == file["created_at"] + 3600
        assert (await client.get(f"/v1/files/{file['id']}")).json() == file
        assert (await client.get("/v1/files", params={"purpose": "batch"})).json()["data"] == [file]
        assert (await client.get("/v1/files", params={"purpose": "batch_output"})).json()["data"] == []
        assert (await client.get(f"/v1/files/{file['id']}/content")).content == data
        gone = await client.delete(f"/v1/files/{file['id']}")
        assert gone.json() == {"id": file["id"], "object": "file", "deleted": True}
        assert (await client.get(f"/v1/files/{file['id']}")).status_code == 404
    assert stored(tmp_path) == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"purpose": "fine-tune"}, "purpose"),
        ({"colour": "red"}, "colour"),
        ({"expires_after[anchor]": "created_at"}, "expires_after[seconds]"),
        ({"expires_after[seconds]": "3600"}, "expires_after[anchor]"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "60"}, "expires_after[seconds]"),
    ],
)
async def test_a_field_of_an_upload_is_refused_by_name(tmp_path: Path, fields: dict[str, str], param: str) -> None:
    async with api(tmp_path) as client:
        reply = await upload(client, b"{}", **fields)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
        assert (await client.get("/v1/files")).json()["data"] == []
    assert stored(tmp_path) == []


async def test_a_file_that_is_too_large_is_a_413(tmp_path: Path) -> None:
    async with api(tmp_path) as client:
        reply = await upload(client, b"x" * 5001)
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/images"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"input_file_id": "file-none"}, "input_file_id"),
        ({"metadata": {"k" * 65: "v"}}, "metadata"),
        ({"colour": "red"}, "colour"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
    ],
)
async def test_a_field_of_a_batch_is_refused_by_name(tmp_path: Path, fields: dict[str, Any], param: str) -> None:
    async with api(tmp_path) as client:
        file_id = (await upload(client)).json()["id"]
        reply = await client.post("/v1/batches", json={**BATCH, "input_file_id": file_id, **fields})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_a_batch_is_made_found_listed_and_cancelled(tmp_path: Path) -> None:
    async with api(tmp_path) as client:
        file_id = (await upload(client)).json()["id"]
        asked = {**BATCH, "input_file_id": file_id, "metadata": {"run": "7"}}
        batches = [(await client.post("/v1/batches", json=asked)).json() for _ in range(3)]
        first = batches[0]
        assert (first["status"], first["metadata"], first["errors"]) == ("validating", {"run": "7"}, None)
        assert first["expires_at"] == first["created_at"] + 24 * 3600
        page = (await client.get("/v1/batches", params={"limit": 2})).json()
        rest = (await client.get("/v1/batches", params={"limit": 2, "after": page["last_id"]})).json()
        assert (page["has_more"], rest["has_more"]) == (True, False)
        assert {batch["id"] for batch in page["data"] + rest["data"]} == {batch["id"] for batch in batches}
        cancelled = (await client.post(f"/v1/batches/{first['id']}/cancel")).json()
        assert (cancelled["status"], cancelled["cancelling_at"] > 0) == ("cancelling", True)


async def test_unknown_ids_are_not_found(tmp_path: Path) -> None:
    async with api(tmp_path) as client:
        for path, code in (("files/file-x", "file_not_found"), ("batches/batch_x", "batch_not_found")):
            reply = await client.get(f"/v1/{path}")
            assert (reply.status_code, reply.json()["error"]["code"]) == (404, code)


async def test_a_key_without_the_class_makes_no_batch(tmp_path: Path) -> None:
    async with api(tmp_path, Tenant(name="t", service_classes=("default",))) as client:  # type: ignore[arg-type]
        file_id = (await upload(client)).json()["id"]
        reply = await client.post("/v1/batches", json={**BATCH, "input_file_id": file_id})
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "permission_denied")
