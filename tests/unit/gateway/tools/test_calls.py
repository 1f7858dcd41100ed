"""Calls of functions in an answer's text: each family's, cut anywhere, half-written, and what only looks like one."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.openai.tools.answer import AnswerFormat, AnswerParser
from gateway.openai.tools.deltas import CallArguments, CallEnd, CallStart
from tests.unit.gateway.tools.parsing import cuts, read_calls

OSLO = ("call", "get_weather", '{"city": "Oslo"}', "complete")
ADD = ("call", "add", '{"a": 1, "b": [2, {"c": "}"}]}', "complete")
OSLO_JSON = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
ADD_JSON = '{"name": "add", "arguments": {"a": 1, "b": [2, {"c": "}"}]}}'
HERMES = f"<tool_call>\n{OSLO_JSON}\n</tool_call>"

WRITTEN = [
    ("hermes", HERMES, [OSLO]),
    ("hermes", f"Let me see. \n{HERMES}\n", [("content", "Let me see."), OSLO]),
    ("hermes", f"{HERMES}\n<tool_call>{ADD_JSON}</tool_call>", [OSLO, ADD]),
    ("hermes", f"{HERMES}\nDone.", [OSLO, ("content", "Done.")]),
    ("hermes", f"<tool_call>\n{OSLO_JSON}\n{ADD_JSON}\n</tool_call>", [OSLO, ADD]),
    ("hermes", f"<tool_call>{OSLO_JSON}}}\n</tool_call>", [OSLO]),
    ("hermes", f"<tool_call>{OSLO_JSON[:-1]}\n</tool_call>", [OSLO]),
    ("llama3", '{"name": "get_weather", "parameters": {"city": "Oslo"}}', [OSLO]),
    ("llama3", '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Oslo"}}', [OSLO]),
    ("llama3", f"{OSLO_JSON}; {ADD_JSON}", [OSLO, ADD]),
    ("llama3", '{"type": "function", "name": "get_weather", "parameters": {"city": "Oslo"}}', [OSLO]),
    ("mistral", f"[TOOL_CALLS] [{OSLO_JSON}, {ADD_JSON}]", [OSLO, ADD]),
    ("mistral", f'[TOOL_CALLS][{OSLO_JSON[:-1]}, "id": "123456789"}}]', [OSLO]),
    ("mistral", 'Well.[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}', [("content", "Well."), OSLO]),
    ("mistral", '[TOOL_CALLS]get_weather[CALL_ID]123456789[ARGS]{"city": "Oslo"}', [OSLO]),
    ("mistral", f'[TOOL_CALLS]get_weather{{"city": "Oslo"}}[TOOL_CALLS]add{ADD[2]}', [OSLO, ADD]),
    ("mistral", f"[{OSLO_JSON}]", [OSLO]),
    ("json", f" {OSLO_JSON} ", [OSLO]),
    ("json", f"[{OSLO_JSON},\n{ADD_JSON}]", [OSLO, ADD]),
]
UNUSUAL = [
    ("json", '{"arguments": {"city": "Oslo"}, "name": "get_weather"}', [OSLO]),
    ("json", '{"name": "get_weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}', [OSLO]),
    ("json", '{"name": "add"}', [("call", "add", "{}", "complete")]),
    ("json", '{"name": "add", "arguments": null}', [("call", "add", "{}", "complete")]),
    ("json", '{"name": "get_\\u0077eather", "arguments": {"city": "\\"}"}}',
     [("call", "get_weather", '{"city": "\\"}"}', "complete")]),
]  # fmt: skip
NO_CALLS = [
    ("hermes", "plain text, 1 < 2, a <tool and <tool_call"),
    ("hermes", "  <tool_call>\nnot JSON</tool_call> and more"),
    ("hermes", '<tool_call>{"name": "rm", "arguments": {}}</tool_call>'),
    ("hermes", '{"name": "get_weather", "arguments": {}}'),
    ("llama3", '{"answer": [1, 2]}'),
    ("llama3", '{"name": "rm", "parameters": {}}'),
    ("llama3", '<|python_tag|>print("hello")'),
    ("mistral", "[1] see the list"),
    ("mistral", "[TOOL_CALLS]rm[ARGS]{}"),
    ("json", '[{"name": 5}]'),
    ("json", "text first, then " + OSLO_JSON),
]


@pytest.mark.parametrize(("family", "text", "expected"), WRITTEN + UNUSUAL)
def test_calls_are_read_however_the_text_is_cut(family: str, text: str, expected: list[tuple[str, ...]]) -> None:
    assert [read_calls(pieces, family) for pieces in cuts(text)] == [expected] * len(cuts(text))


@pytest.mark.parametrize(("family", "text"), NO_CALLS)
def test_what_is_no_call_is_content_as_it_was_written(family: str, text: str) -> None:
    assert [read_calls(pieces, family) for pieces in cuts(text)] == [[("content", text)]] * len(cuts(text))


@pytest.mark.parametrize(("family", "text", "expected"), WRITTEN)
def test_an_answer_that_ends_anywhere_is_content_or_a_call_and_no_half_marker_beside_one(
    family: str, text: str, expected: list[tuple[str, ...]]
) -> None:
    for end in range(len(text)):
        parts = read_calls(list(text[:end]), family)
        calls = [part for part in parts if part[0] == "call"]
        written = [part for part in expected if part[0] == "call"]
        assert [call[:2] for call in calls] == [call[:2] for call in written[: len(calls)]]
        assert all(whole[2].startswith(call[2]) for call, whole in zip(calls, written, strict=False))
        assert all(call[3] == "complete" for call in calls[:-1])
        if not calls:
            assert "".join(part[1] for part in parts) == text[:end]


def test_arguments_grow_as_they_are_written() -> None:
    parser = AnswerParser(AnswerFormat(family="hermes", names=("add",)))
    assert parser.push('<tool_call>{"name": "add", ') == [CallStart(0, "add")]
    assert parser.push('"arguments": {"a"') == [CallArguments(0, '{"a"')]
    assert parser.push(": 1}") == [CallArguments(0, ": 1}")]
    assert parser.push("}</tool_call>") == [CallEnd(0, is_complete=True)]


ALPHABET = st.sampled_from(
    ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "[ARGS]", OSLO_JSON, ADD_JSON, '{"name": "add"',
     '{"name": "rm"', ', "arguments": {', "{", "}", "[", "]", '"', "\\", " ", "\n", ";", ",", "text", "<", "é"]
)  # fmt: skip


@given(
    family=st.sampled_from(["hermes", "llama3", "mistral", "json"]),
    pieces=st.lists(ALPHABET, max_size=12),
    at=st.lists(st.integers(0, 200), max_size=8),
)
def test_where_the_text_is_cut_changes_nothing(family: str, pieces: list[str], at: list[int]) -> None:
    text = "".join(pieces)
    marks = [0, *sorted(min(mark, len(text)) for mark in at), len(text)]
    cut = [text[start:end] for start, end in pairwise(marks)]
    whole = read_calls(text, family)
    assert read_calls(cut, family) == whole == read_calls(list(text), family)
    assert all(len(part) == 4 for part in whole if part[0] == "call")
