"""OpenAI's own Python SDK on `/v1/files` and `/v1/batches`: a batch from upload to results, and one cancelled."""

from __future__ import annotations

import json
import time
from typing import Any

from openai import BadRequestError, NotFoundError, OpenAI

from loadtest.clients.steps import expect, server, step

SERVER = server()


def lines(count: int) -> bytes:
    body = {"model": SERVER.simulated, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}
    line: dict[str, Any] = {"method": "POST", "url": "/v1/chat/completions", "body": body}
    return b"".join(json.dumps(line | {"custom_id": f"line-{number}"}).encode() + b"\n" for number in range(count))


def main(client: OpenAI) -> None:
    with step("files: uploaded, listed, read, deleted"):
        file = client.files.create(file=("lines.jsonl", lines(2)), purpose="batch")
        expect(file.id in [listed.id for listed in client.files.list(purpose="batch")], "not listed")
        expect(client.files.retrieve(file.id).bytes == len(lines(2)), "size")
        expect(client.files.content(file.id).content == lines(2), "content")
        expect(client.files.delete(file.id).deleted, "not deleted")
        try:
            client.files.retrieve(file.id)
        except NotFoundError:
            pass
        else:
            raise AssertionError("still there")
    with step("batches: every line is answered"):
        file = client.files.create(file=("lines.jsonl", lines(6)), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"a": "b"}
        )
        give_up = time.monotonic() + 90
        while batch.status not in ("completed", "failed", "expired", "cancelled") and time.monotonic() < give_up:
            time.sleep(0.3)
            batch = client.batches.retrieve(batch.id)
        expect(
            batch.status == "completed" and batch.request_counts.completed == 6,
            f"{batch.status} {batch.request_counts}",
        )
        results = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
        expect({result["custom_id"] for result in results} == {f"line-{number}" for number in range(6)}, "lines")
        expect(batch.id in [listed.id for listed in client.batches.list()], "not listed")
    with step("batches: cancelled, and a bad one refused"):
        file = client.files.create(file=("lines.jsonl", lines(200)), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        expect(client.batches.cancel(batch.id).status in ("cancelling", "cancelled"), "not cancelled")
        try:
            client.batches.create(input_file_id="file-none", endpoint="/v1/chat/completions", completion_window="24h")
        except (BadRequestError, NotFoundError):
            pass
        else:
            raise AssertionError("a file that is not there was taken")
