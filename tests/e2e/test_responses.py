"""The Responses API with the official SDK: two gateways, one of which is killed; simulated worker."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from openai.types.responses import Response
from openresponses_types.types import ResponseResource

from loadtest.stack import Stack
from tests.e2e.conftest import SIMULATED

pytestmark = pytest.mark.e2e
MODEL = "simulated"
ASKED: dict[str, Any] = {"model": MODEL, "input": "Tell me of the river.", "temperature": 0, "max_output_tokens": 40}
GIVE_UP_S = 30


def asked(max_output_tokens: int) -> dict[str, Any]:
    return {**ASKED, "max_output_tokens": max_output_tokens}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two gateways on one store; each test leaves them whole."""
    with Stack(tmp_path_factory.mktemp("responses"), num_gateways=2, env=SIMULATED) as stack:
        yield stack


@pytest.fixture
def here(pair: Stack) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{pair.base_urls[0]}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture
def there(pair: Stack) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{pair.base_urls[1]}/v1", api_key="unused", max_retries=0) as client:
        yield client


def ended(client: OpenAI, response_id: str) -> Response:
    give_up = time.monotonic() + GIVE_UP_S
    while (response := client.responses.retrieve(response_id)).status in ("queued", "in_progress"):
        assert time.monotonic() < give_up, response.status
    return response


def wait_until_stored(stack: Stack, response_id: str) -> None:
    """Looking at the rows, not asking a gateway, which would end it."""
    give_up = time.monotonic() + GIVE_UP_S
    with contextlib.closing(sqlite3.connect(stack.directory / "store.db")) as rows:
        asked = "SELECT status FROM responses WHERE id = ? AND status NOT IN ('queued', 'in_progress')"
        while rows.execute(asked, (response_id,)).fetchone() is None:
            assert time.monotonic() < give_up
            time.sleep(0.05)


def told(response: Response) -> dict[str, Any]:
    """But for the second it ended in, which two clocks may tell."""
    return {name: value for name, value in response.model_dump().items() if name != "completed_at"}


def test_a_response_is_what_its_stream_said_and_found_on_any_gateway(here: OpenAI, there: OpenAI) -> None:
    with here.responses.stream(**ASKED) as stream:
        events = list(stream)
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert events[-1].type == "response.incomplete"  # the simulated model never stops by itself
    final = events[-1].response
    assert text == final.output_text == here.responses.create(**ASKED).output_text
    assert told(there.responses.retrieve(final.id)) == told(Response.model_validate(final.model_dump()))


def test_a_response_is_one_of_the_specification(here: OpenAI) -> None:
    raw = here.responses.with_raw_response.create(**ASKED).http_response.json()
    ResponseResource.model_validate(raw)
    Response.model_validate(raw)


def test_a_stream_is_the_same_again_from_any_number_and_any_gateway(here: OpenAI, there: OpenAI) -> None:
    events = [event.to_dict() for event in here.responses.create(**ASKED, stream=True)]
    response_id = events[0]["response"]["id"]  # type: ignore[index]
    for client, after in ((here, 0), (there, 7), (there, len(events) - 2)):
        again = client.responses.retrieve(response_id, stream=True, starting_after=after)
        assert [event.to_dict() for event in again] == events[after + 1 :]


def test_what_runs_in_the_background_needs_no_client(here: OpenAI, there: OpenAI) -> None:
    queued = here.responses.create(**ASKED, background=True)
    assert queued.status == "queued" and queued.output == []
    assert ended(there, queued.id).output_text == here.responses.create(**ASKED).output_text


def test_a_client_that_leaves_at_once_and_comes_back_elsewhere_misses_nothing(here: OpenAI, there: OpenAI) -> None:
    """It left exactly at the first event."""
    with here.responses.create(**ASKED, background=True, stream=True) as stream:
        first = next(iter(stream))
    assert first.type == "response.created"
    rest = list(there.responses.retrieve(first.response.id, stream=True, starting_after=first.sequence_number))
    assert [event.sequence_number for event in rest] == list(range(1, len(rest) + 1))
    assert rest[-1].type == "response.incomplete" and ended(here, first.response.id).status == "incomplete"


def test_a_response_that_is_not_kept_can_still_be_followed_again(here: OpenAI, pair: Stack) -> None:
    """As any request: by its id, while the queue knows it."""
    detached = {"X-Headrace-Detach": "true"}
    with here.responses.create(**ASKED, store=False, stream=True, extra_headers=detached) as stream:
        first = next(iter(stream))
    assert first.type == "response.created"
    url = f"{pair.base_urls[1]}/v1/requests/{first.response.id}/events?starting_after=1"
    lines = httpx.get(url, timeout=GIVE_UP_S, trust_env=False).text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert [event["sequence_number"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["type"] == "response.incomplete" and events[-1]["response"]["store"] is False


def test_a_client_that_leaves_the_foreground_cancels(here: OpenAI, there: OpenAI) -> None:
    with here.responses.create(**asked(4000), stream=True) as stream:
        first = next(iter(stream))
    assert first.type == "response.created"
    assert ended(there, first.response.id).status == "cancelled"


def test_a_repeated_background_request_is_the_same_response(here: OpenAI, there: OpenAI) -> None:
    key = {"Idempotency-Key": "once"}
    first = here.responses.create(**ASKED, background=True, extra_headers=key)
    ended(here, first.id)
    again = there.responses.create(**ASKED, background=True, extra_headers=key)
    assert (again.id, again.status) == (first.id, "incomplete")


def test_a_conversation_goes_on_from_the_store(here: OpenAI, there: OpenAI) -> None:
    first = here.responses.create(**ASKED, instructions="Be brief.")
    second = there.responses.create(model=MODEL, input="And then?", previous_response_id=first.id, max_output_tokens=4)
    items = list(there.responses.input_items.list(second.id, order="asc"))
    assert [item.to_dict()["role"] for item in items] == ["user", "assistant", "user"]
    assert second.previous_response_id == first.id and second.usage and first.usage
    assert second.usage.input_tokens > first.usage.output_tokens


def test_input_items_come_in_pages(here: OpenAI) -> None:
    said: list[Any] = [{"role": "user", "content": f"line {number}"} for number in range(5)]
    response = here.responses.create(model=MODEL, input=said, max_output_tokens=2)
    page = here.responses.input_items.list(response.id, limit=2)
    assert page.has_more and len(page.data) == 2
    assert len(list(page)) == 5  # the SDK asks for the pages that follow


def test_cancelling_is_for_the_background_and_can_be_repeated(here: OpenAI, there: OpenAI) -> None:
    running = here.responses.create(**asked(4000), background=True)
    assert there.responses.cancel(running.id).status == here.responses.cancel(running.id).status == "cancelled"
    with pytest.raises(BadRequestError, match="synchronous"):
        here.responses.cancel(here.responses.create(**ASKED).id)


def test_what_is_deleted_or_not_stored_is_not_found(here: OpenAI, there: OpenAI) -> None:
    deleted = here.responses.create(**ASKED)
    there.responses.delete(deleted.id)
    for response_id in (deleted.id, here.responses.create(**ASKED, store=False).id, "resp_none"):
        with pytest.raises(NotFoundError, match="not found"):
            here.responses.retrieve(response_id)
        with pytest.raises(BadRequestError, match="not found"):
            here.responses.create(**ASKED, previous_response_id=response_id)


def test_a_killed_gateway_takes_nothing_of_the_background_with_it(pair: Stack, here: OpenAI, there: OpenAI) -> None:
    """One client follows on elsewhere from the number it had; the other response is ended though nobody asks for it."""
    expected = here.responses.create(**asked(150))
    alone = here.responses.create(**asked(150), background=True)
    stream = iter(here.responses.create(**asked(150), background=True, stream=True))
    seen = [next(stream) for _ in range(10)]
    pair.restart_gateway(0)
    response_id = seen[0].response.id  # type: ignore[union-attr]
    rest = list(there.responses.retrieve(response_id, stream=True, starting_after=seen[-1].sequence_number))
    deltas = [event.delta for event in [*seen, *rest] if event.type == "response.output_text.delta"]
    assert "".join(deltas) == expected.output_text
    wait_until_stored(pair, alone.id)
    assert there.responses.retrieve(alone.id).output_text == expected.output_text


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_of_a_function_goes_round(here: OpenAI, *, stream: bool) -> None:
    tool: Any = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c1", "output": "a mill"}
    said: Any = [{"role": "user", "content": "Look."}, call, result]
    reply: Any = here.responses.create(model=MODEL, input=said, tools=[tool], max_output_tokens=4, stream=stream)
    response = list(reply)[-1].response if stream else reply
    assert response.tools[0].name == "look" and response.output_text


def test_a_forced_call_and_its_result_on_the_real_model(real: Stack) -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool: Any = {"type": "function", "name": "get_weather", "parameters": parameters, "strict": True}
    asked: dict[str, Any] = {"model": "smollm2-135m-instruct", "tools": [tool], "temperature": 0}
    choice: Any = {"type": "function", "name": "get_weather"}
    with OpenAI(base_url=f"{real.base_url}/v1", api_key="unused", max_retries=0) as client:
        with client.responses.stream(**asked, input="The weather in Paris?", tool_choice=choice) as stream:
            called = stream.get_final_response()
        (call,) = called.output
        assert called.status == "completed" and call.type == "function_call" and "city" in json.loads(call.arguments)
        result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny, 21 C"}]
        told = client.responses.create(**asked, input=result, previous_response_id=called.id, max_output_tokens=40)
    assert "sunny" in told.output_text.lower()
