"""Calls and reasoning as a client is told them: chunk by chunk, in one message, and again from a stored view."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.openai.identity import new_request_id
from gateway.openai.tools.answer import AnswerFormat
from gateway.openai.tools.deltas import call_id
from gateway.openai.view import View, decode_view, encode_view
from shared.schemas import ChoiceEndFrame, EndFrame, Frame, Outcome, TokensFrame, Usage

REQUEST_ID = new_request_id()
REVISION = "tiny@0123456789abcdef"
FORMAT = AnswerFormat(family="hermes", names=("get_weather", "add"), reasoning="tagged")
TEXT = (
    "<think>\nhm</think>\nLet me see. <tool_call>\n"
    '{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n<tool_call>\n'
    '{"name": "add", "arguments": {}}\n</tool_call>'
)


def frames_of(texts: dict[int, list[str]], reason: str = "stop") -> list[Frame]:
    frames: list[Frame] = [TokensFrame(choice, [7], text) for choice, pieces in texts.items() for text in pieces]
    ends: list[Frame] = [ChoiceEndFrame(choice, reason) for choice in texts]
    return [*frames, *ends, EndFrame(Outcome.FINISHED, Usage(5, len(frames)))]


def view_of(n: int = 1, **fields: Any) -> View:
    return View(endpoint="chat", model="tiny", n=n, answer=FORMAT, **fields)


def chunks_of(frames: list[Frame], view: View) -> list[dict[str, Any]]:
    stream = view.chunks(REQUEST_ID, REVISION)
    return [json.loads(payload) for frame in frames for payload in stream.convert(frame) if payload != b"[DONE]"]


def message_of(frames: list[Frame], view: View, index: int = 0) -> dict[str, Any]:
    reply = view.reply(REQUEST_ID, REVISION)
    reply.add(frames)
    choice = json.loads(reply.body())["choices"][index]
    return choice["message"] | {"finish_reason": choice["finish_reason"]}


def accumulated(chunks: list[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """As the SDKs do it: strings are concatenated, calls found by their index."""
    message: dict[str, Any] = {"role": "", "content": "", "calls": {}}
    for choice in (choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index):
        for call in choice["delta"].get("tool_calls", ()):
            known = message["calls"].setdefault(call["index"], {"id": "", "type": "", "name": "", "arguments": ""})
            known["id"] += call.get("id", "")
            known["type"] += call.get("type", "")
            known["name"] += call["function"].get("name", "")
            known["arguments"] += call["function"]["arguments"]
        for name in ("role", "content", "reasoning_content"):
            message[name] = message.get(name, "") + choice["delta"].get(name, "")
        message["finish_reason"] = choice["finish_reason"]
    return message


def test_each_delta_says_what_is_new_and_nothing_twice() -> None:
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks_of(frames_of({0: [TEXT]}), view_of())]
    first, second = (call_id(REQUEST_ID, 0, index) for index in (0, 1))
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "hm", "reasoning": "hm"},
        {"content": "Let me see."},
        {"tool_calls": [{"index": 0, "id": first, "type": "function",
                         "function": {"name": "get_weather", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": "Oslo"}'}}]},
        {"tool_calls": [{"index": 1, "id": second, "type": "function", "function": {"name": "add", "arguments": ""}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]},
        {},
    ]  # fmt: skip


def test_a_message_has_its_calls_and_null_for_what_it_did_not_say() -> None:
    message = message_of(frames_of({0: [TEXT[TEXT.index("<tool_call>") :]]}), view_of())
    assert message["content"] is None and message["finish_reason"] == "tool_calls"
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["get_weather", "add"]
    assert {call["type"] for call in message["tool_calls"]} == {"function"} and "reasoning" not in message
    assert "tool_calls" not in message_of(frames_of({0: ["Hi"]}), view_of())


def test_a_call_cut_by_max_tokens_ends_with_length_and_what_there_is() -> None:
    frames = frames_of({0: [TEXT[:-60]]}, "length")
    assert (
        message_of(frames, view_of())["finish_reason"]
        == "length"
        == accumulated(chunks_of(frames, view_of()))["finish_reason"]
    )


def test_reasoning_is_counted() -> None:
    stream = view_of(include_usage=True)
    usage = chunks_of(frames_of({0: ["<think>", "a", "b", "</think>", "c"]}), stream)[-1]["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 3}


def test_token_ids_and_running_usage_go_with_the_chunks() -> None:
    view = view_of(include_usage=True, token_ids=True, continuous_usage=True, prompt_ids=(1, 2))
    chunks = chunks_of(frames_of({0: ["a", "", "b"]}), view)
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [[1, 2], None, None, None, None]
    assert [chunk["choices"][0].get("token_ids") for chunk in chunks[:-1]] == [None, [7], [7, 7], []]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 1, 3, 3, 3]
    assert chunks[1]["usage"]["prompt_tokens"] == 2


@given(
    cuts=st.lists(st.lists(st.integers(0, len(TEXT)), max_size=6), min_size=2, max_size=2),
    ends=st.lists(st.integers(0, len(TEXT)), min_size=2, max_size=2),
)
def test_a_stream_a_plain_answer_and_a_stream_from_another_gateway_say_the_same(
    cuts: list[list[int]], ends: list[int]
) -> None:
    texts: dict[int, list[str]] = {}
    for choice, (at, end) in enumerate(zip(cuts, ends, strict=True)):
        marks = [0, *sorted(min(mark, end) for mark in at), end]
        texts[choice] = [TEXT[a:b] for a, b in zip(marks, marks[1:], strict=False)]  # noqa: RUF007
    frames, view = frames_of(texts), view_of(n=2)
    elsewhere = decode_view(encode_view(view))
    chunks = chunks_of(frames, view)
    assert elsewhere is not None and chunks_of(frames, elsewhere) == chunks
    for choice in texts:
        told, plain = accumulated(chunks, choice), message_of(frames, view, choice)
        assert (told["content"], told["finish_reason"]) == (plain["content"] or "", plain["finish_reason"])
        assert told.get("reasoning_content", "") == plain.get("reasoning_content", "")
        calls = [{"id": call["id"], "type": call["type"], **call["function"]} for call in plain.get("tool_calls", ())]
        assert list(told["calls"].values()) == calls
