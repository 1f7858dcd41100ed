"""The surface through the real ASGI app: ids, errors, models, health, and what the dispatcher is told."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from shared.errors import HeadraceError, Overloaded, StreamContradiction, Unavailable
from shared.schemas import EndFrame, ErrorInfo, Outcome, TokensFrame
from tests.unit.gateway.fakes import (
    CARD,
    TAKEN,
    FakeDispatcher,
    FakeReadiness,
    build_app,
    chat_body,
    client_of,
    completion_body,
)

CHAT = "/v1/chat/completions"


async def call(method: str, path: str, dispatcher: FakeDispatcher | None = None, **request: Any) -> httpx.Response:
    async with client_of(build_app(dispatcher)) as client:
        return await client.request(method, path, **request)


async def test_a_plain_chat() -> None:
    dispatcher = FakeDispatcher()
    response = await call("POST", CHAT, dispatcher, json=chat_body())
    assert response.json()["choices"][0]["message"]["content"] == "Hello world"
    assert response.json()["id"] == f"chatcmpl-{dispatcher.requests[0].request_id}"
    assert response.headers["x-request-id"] == dispatcher.requests[0].request_id


async def test_a_streamed_chat_ends_with_done() -> None:
    response = await call("POST", CHAT, json=chat_body(stream=True))
    frames = response.text.split("\n\n")
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert frames[-2:] == ["data: [DONE]", ""] and all(frame.startswith("data: ") for frame in frames[:-1])
    assert response.headers["x-request-id"]


async def test_a_plain_completion() -> None:
    response = await call("POST", "/v1/completions", json=completion_body())
    assert response.json()["object"] == "text_completion"
    assert response.json()["choices"][0]["text"] == "Hello world"


async def test_a_long_prompt_goes_through_the_pool() -> None:
    dispatcher = FakeDispatcher()
    await call("POST", CHAT, dispatcher, json=chat_body(metadata={"pad": "x" * 10_000}))
    assert len(dispatcher.requests) == 1


@pytest.mark.parametrize("path", ["/v1/chat/completions/", "/nowhere", "/v1/models/"])
async def test_unknown_paths_and_slashes_are_404_in_shape(path: str) -> None:
    response = await call("POST" if "chat" in path else "GET", path)
    assert response.status_code == 404 and set(response.json()["error"]) == {"message", "type", "param", "code"}


async def test_a_wrong_method_is_405_in_shape() -> None:
    response = await call("GET", CHAT)
    assert response.status_code == 405 and response.headers["allow"] == "POST"
    assert response.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize(
    ("refusal", "status", "code"),
    [
        (Overloaded("full", retry_after_s=2.5, code="queue_full"), 429, "queue_full"),
        (Overloaded("full", retry_after_s=500), 429, "rate_limit_exceeded"),
        (Unavailable("away", retry_after_s=0), 503, "server_is_overloaded"),
    ],
)
async def test_a_refusal_says_when_to_return(refusal: HeadraceError, status: int, code: str) -> None:
    for stream in (False, True):
        response = await call("POST", CHAT, FakeDispatcher(refusal=refusal), json=chat_body(stream=stream))
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)
        assert 1 <= int(response.headers["retry-after"]) <= 60
        assert 1000 <= int(response.headers["retry-after-ms"]) <= 60_000


async def test_a_fault_of_ours_is_a_500_that_says_nothing() -> None:
    response = await call("POST", CHAT, FakeDispatcher(refusal=ZeroDivisionError("secret")), json=chat_body())
    assert response.status_code == 500 and "secret" not in response.text
    assert response.headers["x-request-id"] in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("outcome", "status"),
    [(Outcome.CANCELLED, 499), (Outcome.EXPIRED, 504), (Outcome.FAILED, 500), (Outcome.DEAD, 500)],
)
async def test_an_end_without_an_answer_is_a_final_status(outcome: Outcome, status: int) -> None:
    end = EndFrame(outcome, error=ErrorInfo("reason", "words"))
    response = await call("POST", CHAT, FakeDispatcher([[TAKEN], [end]]), json=chat_body())
    assert (response.status_code, response.json()["error"]["code"]) == (status, "reason")
    assert response.headers["x-should-retry"] == "false"


async def test_an_end_without_an_answer_is_an_error_frame_in_a_stream() -> None:
    batch = [TokensFrame(0, [1], "Hel"), EndFrame(Outcome.FAILED, error=ErrorInfo("engine_error", "words"))]
    response = await call("POST", CHAT, FakeDispatcher([batch]), json=chat_body(stream=True))
    *_, content, error, done, _ = response.text.split("\n\n")
    assert '"content":"Hel"' in content and done == "data: [DONE]"
    assert error == 'data: {"error":{"message":"words","type":"server_error","param":null,"code":"engine_error"}}'


async def test_a_contradiction_in_mid_stream_is_an_error_frame() -> None:
    dispatcher = FakeDispatcher([[TokensFrame(0, [1], "Hel")]])
    dispatcher.failure = StreamContradiction("not what was sent")
    response = await call("POST", CHAT, dispatcher, json=chat_body(stream=True))
    assert '"code":"stream_contradiction"' in response.text and response.text.endswith("data: [DONE]\n\n")


async def test_a_journal_cut_short_never_ends_cleanly() -> None:
    from gateway.routes.delivery import JournalCut

    with pytest.raises(JournalCut):
        await call("POST", CHAT, FakeDispatcher([[TAKEN]]), json=chat_body(stream=True))
    response = await call("POST", CHAT, FakeDispatcher([[TAKEN]]), json=chat_body())
    assert response.status_code == 500


async def test_a_client_that_leaves_a_plain_request_cancels_it() -> None:
    dispatcher = FakeDispatcher([[TAKEN]], hold=True)
    app = build_app(dispatcher)
    body = httpx.Request("POST", "http://gateway/", json=chat_body()).content
    messages = [{"type": "http.request", "body": body, "more_body": False}, {"type": "http.disconnect"}]
    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.sleep(0)
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": CHAT, "raw_path": CHAT.encode(), "query_string": b"",
        "headers": [(b"content-type", b"application/json")], "http_version": "1.1", "scheme": "http",
    }  # fmt: skip
    await app(scope, receive, send)
    assert dispatcher.left == [dispatcher.requests[0].request_id] and sent == []


async def test_the_clients_id_is_echoed_when_it_is_proper() -> None:
    for header in ("X-Request-Id", "X-Client-Request-Id"):
        assert (await call("GET", "/health/live", headers={header: "job-1:2"})).headers[
            "x-client-request-id"
        ] == "job-1:2"
    for odd in ("x" * 200, "a b", "é", "a;b"):
        response = await call("GET", "/health/live", headers={"X-Request-Id": odd.encode()})
        assert len(response.headers["x-request-id"]) == 32


async def test_two_requests_with_one_client_id_stay_two() -> None:
    dispatcher = FakeDispatcher()
    for _ in range(2):
        await call("POST", CHAT, dispatcher, json=chat_body(), headers={"X-Request-Id": "same"})
    assert dispatcher.requests[0].request_id != dispatcher.requests[1].request_id


async def test_deadlines_and_trace_come_from_the_headers() -> None:
    dispatcher = FakeDispatcher()
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    headers = {"x-stainless-read-timeout": "2.5", "X-Headrace-Deadline-Ms": "9000", "traceparent": trace}
    await call("POST", CHAT, dispatcher, json=chat_body(), headers=headers)
    await call(
        "POST", CHAT, dispatcher, json=chat_body(), headers={"x-stainless-read-timeout": "None", "traceparent": "x"}
    )
    given, default = dispatcher.options
    assert (given.start_deadline_ms, given.deadline_ms, given.traceparent) == (2500, 9000, trace)
    assert (default.start_deadline_ms, default.deadline_ms, default.traceparent) == (600_000, 0, "")


async def test_models_are_listed_and_found_by_names_with_slashes() -> None:
    listed = (await call("GET", "/v1/models")).json()
    assert listed["object"] == "list"
    assert (await call("GET", f"/v1/models/{CARD.name}")).json() == listed["data"][0]
    missing = await call("GET", "/v1/models/acme/none")
    assert missing.status_code == 404 and missing.json()["error"]["code"] == "model_not_found"


async def test_health_and_metrics() -> None:
    app = build_app()
    async with client_of(app) as client:
        assert (await client.get("/health/live")).status_code == 200
        assert (await client.get("/health/ready")).status_code == 200
        readiness = app.state.services.readiness
        assert isinstance(readiness, FakeReadiness)
        readiness.answer = (False, "Redis does not answer")
        refused = await client.get("/health/ready")
        assert refused.status_code == 503 and refused.json()["reason"] == "Redis does not answer"
        assert "headrace_sample_total 1.0" in (await client.get("/metrics")).text


async def test_the_documentation_shows_the_bodies() -> None:
    schema = build_app().openapi()
    body = schema["paths"][CHAT]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"messages", "model", "temperature"} <= set(body["properties"])
    assert "$ref" not in str(body)


class StoppingDispatcher(FakeDispatcher):
    """The server ends while it works, and cancels what outlasts its drain."""

    async def submit(self, *args: Any, **kwargs: Any) -> Any:
        raise asyncio.CancelledError


async def test_what_outlasts_the_drain_is_a_503_in_our_words() -> None:
    response = await call("POST", CHAT, StoppingDispatcher(), json=chat_body())
    assert (response.status_code, response.json()["error"]["code"]) == (503, "server_is_overloaded")
    assert float(response.headers["retry-after"]) >= 1
