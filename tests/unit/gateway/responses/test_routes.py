"""/v1/responses over HTTP around fakes, with a store that does not answer: what is served, and how it is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.gateway.fakes import CARD, FakeDispatcher, answer, build_app, client_of

BODY: dict[str, Any] = {"model": CARD.name, "input": "hi", "store": False}
EARLIER = {"previous_response_id": "resp_1"}


async def posted(path: str = "/v1/responses", **fields: Any) -> Any:
    async with client_of(build_app(FakeDispatcher(answer("a", "b")))) as client:
        return await client.post(path, json=BODY | fields)


async def test_a_plain_answer_needs_no_store() -> None:
    response = await posted()
    assert response.status_code == 200
    assert response.json()["output"][0]["content"][0]["text"] == "ab" and response.json()["status"] == "completed"


async def test_a_stream_is_whole_events_without_done() -> None:
    response = await posted(stream=True)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    frames = response.text.removesuffix("\n\n").split("\n\n")
    for frame in frames:
        kind, data = frame.split("\n")
        assert kind == f"event: {json.loads(data.removeprefix('data: '))['type']}"
    assert frames[-1].startswith("event: response.completed") and "[DONE]" not in response.text


@pytest.mark.parametrize("fields", [{"store": True}, {"stream": True, "store": True}, EARLIER])
async def test_what_needs_a_store_that_is_away_is_told_when_to_come_back(fields: dict[str, Any]) -> None:
    response = await posted(**fields)
    assert response.status_code == 503 and float(response.headers["retry-after"]) > 0


async def test_tokens_are_counted_without_asking_the_model() -> None:
    async with client_of(build_app()) as client:
        response = await client.post("/v1/responses/input_tokens", json={"model": CARD.name, "input": "hi"})
    assert response.json()["object"] == "response.input_tokens" and response.json()["input_tokens"] > 0


@pytest.mark.parametrize("path", ["/v1/responses/r?stream=maybe", "/v1/responses/r/input_items?limit=0"])
async def test_a_query_that_cannot_be_meant_is_a_400(path: str) -> None:
    async with client_of(build_app()) as client:
        response = await client.get(path)
    assert response.status_code == 400 and response.json()["error"]["type"] == "invalid_request_error"
