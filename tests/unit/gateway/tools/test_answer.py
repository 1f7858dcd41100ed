"""Reasoning split off an answer, and the reason it ended."""

from __future__ import annotations

import pytest

from gateway.openai.tools.answer import AnswerFormat, AnswerParser
from gateway.openai.tools.deltas import call_id
from tests.unit.gateway.tools.parsing import NAMES, cuts, read

TAGGED = AnswerFormat(reasoning="tagged")
OPEN = AnswerFormat(reasoning="open")
CALL = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
THOUGHT = ("reasoning", "a < b\n\nso be it")
ANSWER = ("content", "Yes, a </think> b")


@pytest.mark.parametrize(
    ("answer_format", "text", "expected"),
    [
        (TAGGED, "<think>\na < b\n\nso be it\n</think>\n\nYes, a </think> b", [THOUGHT, ANSWER]),
        (OPEN, "\na < b\n\nso be it\n</think>\n\nYes, a </think> b", [THOUGHT, ANSWER]),
        (OPEN, "<think>a < b\n\nso be it</think>Yes, a </think> b", [THOUGHT, ANSWER]),
        (TAGGED, "<think>\n\n</think>\n\nYes, a </think> b", [ANSWER]),
        (TAGGED, " Yes, a <think> b", [("content", " Yes, a <think> b")]),
        (TAGGED, "<thi", [("content", "<thi")]),
        (TAGGED, "<think>never ended \n", [("reasoning", "never ended")]),
        (OPEN, "never ended", [("reasoning", "never ended")]),
        (AnswerFormat(), "<think>a</think>b", [("content", "<think>a</think>b")]),
    ],
)
def test_reasoning_is_split_off_however_the_text_is_cut(
    answer_format: AnswerFormat, text: str, expected: list[tuple[str, ...]]
) -> None:
    assert [read(pieces, answer_format) for pieces in cuts(text)] == [expected] * len(cuts(text))


def test_a_call_inside_reasoning_is_reasoning_and_after_it_a_call() -> None:
    both = AnswerFormat(reasoning="tagged", family="hermes", names=NAMES)
    parts = read(f"<think>I could {CALL}</think>\n{CALL}", both)
    assert parts == [("reasoning", f"I could {CALL}"), ("call", "add", "{}", "complete")]


@pytest.mark.parametrize(
    ("is_named", "text", "reason", "told"),
    [
        (False, CALL, "stop", "tool_calls"),
        (False, CALL, "length", "length"),
        (False, CALL[:40], "stop", "tool_calls"),
        (True, CALL, "stop", "stop"),
        (False, "no call", "stop", "stop"),
        (False, CALL[:20], "stop", "stop"),
    ],
)
def test_the_reason_told_fits_what_was_made(is_named: bool, text: str, reason: str, told: str) -> None:
    parser = AnswerParser(AnswerFormat(family="hermes", names=NAMES, is_named=is_named))
    parser.push(text)
    parser.finish()
    assert parser.finish_reason(reason) == told


def test_ids_of_calls_are_derived_and_differ() -> None:
    ids = {call_id(request_id, choice, index) for request_id in "ab" for choice in (0, 1) for index in (0, 1)}
    assert len(ids) == 8 and call_id("a", 0, 0) in ids
