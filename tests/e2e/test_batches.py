"""Files and batches with the official client over real processes, which are killed on the way."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from openai.types import Batch

from loadtest.batch.run import num_admitted
from loadtest.stack import Stack
from tests.e2e.books import settled_books
from tests.e2e.conftest import SIMULATED, client_of

pytestmark = pytest.mark.e2e
OVER = ("completed", "failed", "expired", "cancelled")


def lines(number: int, **body: Any) -> bytes:
    asked = {"model": "simulated", "max_tokens": 30, "ignore_eos": True, **body}
    return b"\n".join(
        json.dumps(
            {
                "custom_id": f"c{i}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {**asked, "messages": [{"role": "user", "content": f"question {i}"}]},
            }
        ).encode()
        for i in range(number)
    )


def start(client: OpenAI, data: bytes) -> Batch:
    file = client.files.create(file=("lines.jsonl", data), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"run": "e2e"}
    )


def until(client: OpenAI, batch_id: str, num_answered: int = 10**9) -> Batch:
    """Over, or so many lines answered."""
    give_up = time.monotonic() + 50
    while time.monotonic() < give_up:
        batch = client.batches.retrieve(batch_id)
        counts = batch.request_counts
        if batch.status in OVER or (counts is not None and counts.completed >= num_answered):
            return batch
        time.sleep(0.05)
    raise AssertionError(f"the batch goes on: {client.batches.retrieve(batch_id)}")


def answers(client: OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()]


def test_a_batch_is_answered_as_its_lines_would_be(simulated: Stack) -> None:
    with client_of(simulated) as client:
        batch = until(client, start(client, lines(5, temperature=0)).id)
        assert (batch.status, batch.metadata) == ("completed", {"run": "e2e"})
        found = {answer["custom_id"]: answer["response"] for answer in answers(client, batch.output_file_id)}
        direct = client.chat.completions.create(
            model="simulated", max_tokens=30, temperature=0, extra_body={"ignore_eos": True},
            messages=[{"role": "user", "content": "question 3"}],
        )  # fmt: skip
        assert found["c3"]["body"]["choices"][0]["message"]["content"] == direct.choices[0].message.content
        assert found["c3"]["body"]["id"] == f"chatcmpl-{found['c3']['request_id']}"
        used = [response["body"]["usage"] for response in found.values()]
        assert batch.usage is not None
        assert batch.usage.input_tokens == sum(usage["prompt_tokens"] for usage in used)
        assert batch.usage.output_tokens == 5 * 30 and batch.usage.total_tokens == batch.usage.input_tokens + 150
        assert batch.id in [one.id for one in client.batches.list(limit=1)]
        client.files.delete(batch.input_file_id)
        with pytest.raises(NotFoundError):
            client.files.retrieve(batch.input_file_id)


def test_a_line_that_cannot_be_is_answered_alone_and_a_wrong_form_fails_all(simulated: Stack) -> None:
    with client_of(simulated) as client:
        batch = until(client, start(client, lines(2) + b"\n" + lines(1, temperature=9).replace(b'"c0"', b'"bad"')).id)
        (bad,) = answers(client, batch.error_file_id)
        assert (batch.status, bad["custom_id"], bad["response"]["status_code"]) == ("completed", "bad", 400)
        assert bad["response"]["body"]["error"]["param"] == "temperature"
        failed = until(client, start(client, lines(1) + b"\n" + lines(1)).id)
        assert failed.errors is not None and failed.errors.data is not None
        assert [(fault.code, fault.line) for fault in failed.errors.data] == [("duplicate_custom_id", 2)]
        with pytest.raises(BadRequestError):
            client.batches.cancel(failed.id)


def test_responses_and_completions_may_be_asked_for_in_batches(simulated: Stack) -> None:
    asked = {"/v1/responses": {"input": "hi", "max_output_tokens": 9}, "/v1/completions": {"prompt": "hi"}}
    with client_of(simulated) as client:
        for url, body in asked.items():
            line = {"custom_id": "a", "method": "POST", "url": url, "body": {"model": "simulated", **body}}
            file = client.files.create(file=("lines.jsonl", json.dumps(line).encode()), purpose="batch")
            batch = client.batches.create(input_file_id=file.id, endpoint=url, completion_window="24h")  # type: ignore[arg-type]
            over = until(client, batch.id)
            (answer,) = answers(client, over.output_file_id)
            assert over.usage is not None
            assert over.usage.total_tokens == answer["response"]["body"]["usage"]["total_tokens"] > 0
            assert answer["response"]["request_id"] in answer["response"]["body"]["id"]


async def test_cancelling_stops_the_lines_under_way(simulated: Stack) -> None:
    with client_of(simulated) as client:
        batch = start(client, lines(3, max_tokens=3000))
        until(client, batch.id, 0)
        assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
        batch = until(client, batch.id)
        assert batch.status == "cancelled"
    assert (await settled_books(simulated)).problems == []


async def test_every_line_is_answered_once_whoever_is_killed(tmp_path: Path) -> None:
    with Stack(tmp_path, num_workers=2, env={**SIMULATED, "batch_lease_s": 1, "max_num_seqs": 8}) as stack:
        with OpenAI(base_url=f"{stack.base_url}/v1", api_key="unused", max_retries=8) as client:
            batch = start(client, lines(200, max_tokens=40))
            until(client, batch.id, 20)
            stack.restart_gateway()
            until(client, batch.id, 60)
            stack.workers[0].kill()
            stack.workers.pop(0).wait()
            until(client, batch.id, 110)
            stack.restart_gateway()
            batch = until(client, batch.id)
            found = answers(client, batch.output_file_id)
        assert (batch.status, batch.error_file_id) == ("completed", None)
        assert Counter(answer["custom_id"] for answer in found) == {f"c{i}": 1 for i in range(200)}
        assert {answer["response"]["body"]["usage"]["completion_tokens"] for answer in found} == {40}
        assert await num_admitted(stack) == 200
        assert (await settled_books(stack)).problems == []
