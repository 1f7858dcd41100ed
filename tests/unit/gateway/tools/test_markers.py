"""Markers of calls that a tokenizer has as special tokens: from the request to the calls found in what was written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.openai.convert import Target, chat_request
from gateway.openai.protocol import parse_chat
from gateway.openai.responses.convert import response_request
from gateway.openai.responses.protocol import parse_response
from shared.text.tokenizer import Tokenizer
from tests.unit.gateway.fakes import CARD, chat_body
from tests.unit.gateway.tools.parsing import read
from tests.unit.shared.tokenizer_samples import blob_of, byte_level

MARKERS = ["<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<tool_call>", "</tool_call>"]
ADD: dict[str, Any] = {"type": "function", "function": {"name": "add"}}
LLAMA3 = '<|python_tag|>{"name": "add", "parameters": {"a": 1}}'
MISTRAL = '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]'
MISTRAL_11 = '[TOOL_CALLS]add[CALL_ID]123456789[ARGS]{"a": 1}'
HERMES = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
ANSWERS = [("llama3", LLAMA3), ("mistral", MISTRAL), ("mistral", MISTRAL_11), ("hermes", HERMES)]


def target_of(family: str, *, is_special: bool = True) -> Target:
    raw = byte_level()
    if is_special:
        raw.add_special_tokens(MARKERS)
    shown = {"llama3": "<|python_tag|>", "mistral": "[TOOL_CALLS]", "hermes": "<tool_call>"}[family]
    template = "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}" + shown
    return Target("r1", CARD, Tokenizer.from_blob(blob_of(raw, chat_template=template)), max_choices=8)


@pytest.mark.parametrize(("family", "text"), ANSWERS)
def test_calls_are_found_though_the_marker_is_special(family: str, text: str) -> None:
    target = target_of(family)
    converted = chat_request(parse_chat(json.dumps(chat_body(tools=[ADD])).encode()), target)
    decoder = target.tokenizer.incremental(converted.request.params.visible_token_ids)
    ids = [*target.tokenizer.encode(f"{text}<|end|>")]
    assert any(target.tokenizer.token_id(marker) in ids for marker in MARKERS)
    pieces = [decoder.push(token_id) for token_id in ids]
    assert "".join(pieces) == text
    (call,) = read(pieces, converted.view.answer)
    assert (call[0], call[1], json.loads(call[2]), call[3]) == ("call", "add", {"a": 1}, "complete")


@pytest.mark.parametrize(
    ("fields", "is_special"),
    [({}, True), ({"tools": [ADD], "tool_choice": "none"}, True), ({"tools": [ADD]}, False),
     ({"tools": [ADD], "tool_choice": "required"}, True)],
)  # fmt: skip
def test_no_token_is_visible_that_no_parser_reads(fields: dict[str, Any], is_special: bool) -> None:
    body = parse_chat(json.dumps(chat_body(**fields)).encode())
    assert chat_request(body, target_of("llama3", is_special=is_special)).request.params.visible_token_ids == ()


def test_a_response_has_the_same() -> None:
    target = target_of("mistral")
    fields = {"model": CARD.name, "input": "hi", "tools": [{"type": "function", "name": "add", "parameters": {}}]}
    request = response_request(parse_response(json.dumps(fields).encode()), [], target).request
    shown = {target.tokenizer.token_bytes(token_id).decode() for token_id in request.params.visible_token_ids}
    assert shown == {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"}
