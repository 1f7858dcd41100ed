"""Journal frames as events of a Responses stream: their order, their numbers, and the response they amount to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from openresponses_types import types as spec

from gateway.openai.identity import new_request_id
from gateway.openai.responses.events import ResponseEvents
from gateway.openai.responses.view import ResponseView, decode_response_view, encode_response_view
from gateway.openai.tools.answer import AnswerFormat
from shared.errors import RequestCancelled, Unavailable
from shared.schemas import (
    ChoiceEndFrame,
    EndFrame,
    ErrorInfo,
    Frame,
    Outcome,
    TokenLogprobs,
    TokensFrame,
    Usage,
)
from tests.unit.gateway.fakes import TAKEN

REQUEST_ID = new_request_id()
FINISHED = EndFrame(Outcome.FINISHED, Usage(prompt_tokens=7, completion_tokens=3, cached_tokens=4))
TEXT: list[Frame] = [TAKEN, TokensFrame(0, [1], "a"), TokensFrame(0, [2], ""), TokensFrame(0, [3], "b")]
CALL = '<tool_call>{"name": "look", "arguments": {"at": 1}}</tool_call>'
ECHO = {
    "background": False, "frequency_penalty": 0.0, "instructions": None, "max_output_tokens": None,
    "max_tool_calls": None, "metadata": {}, "parallel_tool_calls": True, "presence_penalty": 0.0,
    "previous_response_id": None, "prompt_cache_key": None, "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None, "service_tier": "default", "store": True, "temperature": 1.0,
    "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [], "top_logprobs": 0, "top_p": 1.0,
    "truncation": "disabled",
}  # fmt: skip
VIEW = ResponseView(model="acme/tiny", echo=ECHO)
TOOLS = ResponseView(model="acme/tiny", echo=ECHO, answer=AnswerFormat(family="hermes", names=("look",)))
BACKGROUND = ResponseView(model="acme/tiny", echo={**ECHO, "background": True}, is_background=True)
SPEC: dict[str, Any] = {
    "response.created": spec.ResponseCreatedStreamingEvent,
    "response.queued": spec.ResponseQueuedStreamingEvent,
    "response.in_progress": spec.ResponseInProgressStreamingEvent,
    "response.output_item.added": spec.ResponseOutputItemAddedStreamingEvent,
    "response.output_item.done": spec.ResponseOutputItemDoneStreamingEvent,
    "response.content_part.added": spec.ResponseContentPartAddedStreamingEvent,
    "response.content_part.done": spec.ResponseContentPartDoneStreamingEvent,
    "response.output_text.delta": spec.ResponseOutputTextDeltaStreamingEvent,
    "response.output_text.done": spec.ResponseOutputTextDoneStreamingEvent,
    "response.function_call_arguments.delta": spec.ResponseFunctionCallArgumentsDeltaStreamingEvent,
    "response.function_call_arguments.done": spec.ResponseFunctionCallArgumentsDoneStreamingEvent,
    "response.completed": spec.ResponseCompletedStreamingEvent,
    "response.incomplete": spec.ResponseIncompleteStreamingEvent,
    "response.failed": spec.ResponseFailedStreamingEvent,
}
BEGINNING = ["created", "in_progress", "output_item.added", "content_part.added"]
ENDING = ["output_text.done", "content_part.done", "output_item.done"]


def events_of(frames: Sequence[Frame], view: ResponseView = VIEW) -> list[dict[str, Any]]:
    stream = ResponseEvents(view, REQUEST_ID, token_bytes=lambda token_id: bytes([96 + token_id]))
    payloads = stream.opening() + [payload for frame in frames for payload in stream.convert(frame)]
    assert stream.is_done
    return [json.loads(payload) for payload in payloads]


def names(events: Sequence[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def ended(reason: str = "stop") -> list[Frame]:
    return [ChoiceEndFrame(0, reason), FINISHED]


def test_the_order_is_the_one_clients_accumulate() -> None:
    assert names(events_of(TEXT + ended())) == [
        *BEGINNING, "output_text.delta", "output_text.delta", *ENDING, "completed"
    ]  # fmt: skip


@pytest.mark.parametrize("view", [VIEW, BACKGROUND, TOOLS])
def test_every_event_has_the_next_number_and_its_type_first(view: ResponseView) -> None:
    events = events_of([*TEXT, TokensFrame(0, [4], CALL), *ended()], view)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert all(next(iter(event)) == "type" for event in events)


@pytest.mark.parametrize("view", [VIEW, BACKGROUND, TOOLS])
@pytest.mark.parametrize("end", [ended(), ended("length"), [EndFrame(Outcome.FAILED, None, ErrorInfo("x", "y"))]])
def test_events_are_those_of_the_specification(view: ResponseView, end: list[Frame]) -> None:
    for event in events_of([*TEXT, TokensFrame(0, [4], CALL), *end], view):
        SPEC[event["type"]].model_validate(event)


def test_in_the_background_it_is_queued_until_something_happens() -> None:
    events = events_of(TEXT + ended(), BACKGROUND)
    assert names(events)[:3] == ["created", "queued", "in_progress"]
    assert [event["response"]["status"] for event in events[:3]] == ["queued", "queued", "in_progress"]


def test_a_call_has_its_own_events_and_its_arguments_come_in_pieces() -> None:
    frames: list[Frame] = [TokensFrame(0, [n], piece) for n, piece in enumerate([CALL[:45], CALL[45:]], 1)]
    events = events_of(frames + ended(), TOOLS)
    assert names(events) == [
        "created", "in_progress", "output_item.added", "function_call_arguments.delta",
        "function_call_arguments.delta", "function_call_arguments.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert events[2]["item"]["arguments"] == "" and events[2]["item"]["type"] == "function_call"
    deltas = [event["delta"] for event in events if event["type"].endswith("arguments.delta")]
    assert json.loads("".join(deltas)) == {"at": 1} and "".join(deltas) == events[-3]["arguments"]


def test_text_before_a_call_is_a_message_of_its_own() -> None:
    (*_, last) = events_of([TokensFrame(0, [1], "Let me see. " + CALL), *ended()], TOOLS)
    assert [item["type"] for item in last["response"]["output"]] == ["message", "function_call"]
    assert last["response"]["output"][0]["content"][0]["text"] == "Let me see."


def test_reasoning_is_an_item_before_the_message() -> None:
    view = ResponseView(model="m", echo=ECHO, answer=AnswerFormat(reasoning="tagged"))
    events = events_of([TokensFrame(0, [1], "<think>so</think>yes"), *ended()], view)
    assert "reasoning_text.delta" in names(events)
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning", "message"]


def test_an_answer_of_nothing_is_an_empty_message() -> None:
    events = events_of([TAKEN, *ended()])
    assert names(events) == [*BEGINNING, *ENDING, "completed"]
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == ""


def test_what_ran_out_of_tokens_is_incomplete() -> None:
    last = events_of(TEXT + ended("length"))[-1]
    assert last["type"] == "response.incomplete" and last["response"]["status"] == "incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert last["response"]["output"][0]["status"] == "incomplete"


def test_what_failed_says_why_and_keeps_what_there_is() -> None:
    last = events_of([*TEXT, EndFrame(Outcome.FAILED, None, ErrorInfo("worker_error", "out of luck"))])[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"] == {"code": "server_error", "message": "out of luck"}
    assert last["response"]["output"][0]["content"][0]["text"] == "ab"


def test_what_was_cancelled_ends_with_a_flat_error() -> None:
    stream = ResponseEvents(VIEW, REQUEST_ID)
    (payload,) = stream.convert(EndFrame(Outcome.CANCELLED))
    event = json.loads(payload)
    assert event.keys() == {"type", "code", "message", "param", "sequence_number"} and event["type"] == "error"
    assert isinstance(stream.failure, RequestCancelled) and stream.response()["status"] == "cancelled"


def test_an_error_of_ours_has_the_next_number() -> None:
    stream = ResponseEvents(VIEW, REQUEST_ID)
    stream.opening()
    event = json.loads(stream.error(Unavailable("later")))
    assert event["sequence_number"] == 2 and event["code"] == "server_is_overloaded"


def test_usage_is_in_the_words_of_this_api() -> None:
    assert events_of(TEXT + ended())[-1]["response"]["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 10,
    }


def test_logprobs_stay_in_step_with_tokens() -> None:
    view = ResponseView(model="m", echo=ECHO, logprobs=True)
    frames: list[Frame] = [
        TokensFrame(0, [n], text, (TokenLogprobs(-0.5),)) for n, text in enumerate(["a", "", "bc"], 1)
    ]
    events = events_of(frames + ended(), view)
    deltas = [event for event in events if event["type"].endswith("text.delta")]
    assert [[entry["token"] for entry in event["logprobs"]] for event in deltas] == [["a"], ["b", "c"]]
    part = events[-1]["response"]["output"][0]["content"][0]
    assert [entry["token"] for entry in part["logprobs"]] == ["a", "b", "c"]


def test_the_same_events_from_a_view_that_was_stored() -> None:
    view = decode_response_view(encode_response_view(TOOLS))
    assert view is not None and view == TOOLS
    frames = [TokensFrame(0, [1], CALL), *ended()]
    ids = [event.get("item_id") for event in events_of(frames, view)]
    assert ids == [event.get("item_id") for event in events_of(frames, TOOLS)]


def test_a_line_end_of_unicode_does_not_cut_an_event() -> None:
    payloads = ResponseEvents(VIEW, REQUEST_ID).convert(TokensFrame(0, [1], "a\u2028b\n"))
    assert all(len(payload.decode().splitlines()) == 1 for payload in payloads)
