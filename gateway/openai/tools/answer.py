"""The parser of one answer: reasoning split off, calls of functions found, and the reason it ended.

`AnswerFormat` is all that it depends on but the text: it is stored with the request, so that any gateway reads the
same out of the same journal. A format that asks for nothing passes the text on as it is.

    parser = AnswerParser(answer_format)          one for each choice
    parser.push(text)   for each released text    -> deltas
    parser.finish()     when the choice ended     -> deltas: what was held back
    parser.finish_reason("stop")                  -> "tool_calls" where there are calls
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gateway.openai.tools.calls import CallParser, held_back
from gateway.openai.tools.deltas import Content, Delta, Reasoning
from gateway.openai.tools.families import FAMILIES, MAX_CALLS, THINK_END, THINK_START

_BLANK = " \t\r\n"


class AnswerFormat(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """`family` of calls to look for, "" for none, and the functions that were offered; `is_named`: the client named
    the one to call. `reasoning`: "tagged" between <think> and </think>, "open": the prompt has opened it, "" none.
    `is_single`: the first call ends the answer, and what comes after it is dropped.
    """

    family: str = ""
    names: tuple[str, ...] = ()
    is_named: bool = False
    is_single: bool = False
    reasoning: Literal["", "tagged", "open"] = ""


TEXT_ALONE = AnswerFormat()


class AnswerParser:
    """The same deltas, put together, however the text is cut."""

    def __init__(self, answer_format: AnswerFormat) -> None:
        self._format = answer_format
        self._calls = None
        if answer_format.family:
            family, max_calls = FAMILIES[answer_format.family], 1 if answer_format.is_single else MAX_CALLS
            self._calls = CallParser(family, answer_format.names, max_calls)
        self._thought = _Thought(is_open=answer_format.reasoning == "open") if answer_format.reasoning else None

    @property
    def is_thinking(self) -> bool:
        """The next text is reasoning, as far as is known."""
        return self._thought is not None and self._thought.is_open

    @property
    def num_calls(self) -> int:
        return self._calls.num_calls if self._calls else 0

    def push(self, text: str) -> list[Delta]:
        if self._thought is None:
            return self._content(text)
        reasoning, rest = self._thought.push(text)
        deltas: list[Delta] = [Reasoning(reasoning)] if reasoning else []
        return deltas + self._content(rest) if rest else deltas

    def finish(self) -> list[Delta]:
        """Once. Nothing may be pushed after it."""
        reasoning, rest = self._thought.finish() if self._thought else ("", "")
        deltas: list[Delta] = [Reasoning(reasoning)] if reasoning else []
        deltas += self._content(rest)
        return deltas + self._calls.finish() if self._calls else deltas

    def finish_reason(self, reason: str) -> str:
        """As the client is told, of the reason in the journal. A call the client named itself ends with `stop`."""
        return "tool_calls" if reason == "stop" and self.num_calls and not self._format.is_named else reason

    def _content(self, text: str) -> list[Delta]:
        if not text:
            return []
        if self._calls is None:
            return [Content(text)]
        return self._calls.push(text)


class _Thought:
    """Splits `<think>reasoning</think>content`. Blanks around the reasoning belong to neither."""

    def __init__(self, *, is_open: bool) -> None:
        self.is_open = is_open
        self._part: Literal["before", "inside", "after", "content"] = "before"
        self._has_told = False
        self._buffer = ""

    def push(self, text: str) -> tuple[str, str]:
        """What is known to be reasoning, and what to be content."""
        if self._part == "content":
            return "", text
        self._buffer += text
        if self._part == "before":
            self._look_for_start()
        reasoning = self._reasoning() if self._part == "inside" else ""
        if self._part == "after":
            self._buffer = self._buffer.lstrip(_BLANK)
            self._part = "content" if self._buffer else "after"
        return reasoning, self._release() if self._part == "content" else ""

    def finish(self) -> tuple[str, str]:
        left = self._release()
        if self._part == "after":
            return "", ""
        return (left.rstrip(_BLANK), "") if self.is_open else ("", left)

    def _release(self) -> str:
        text, self._buffer = self._buffer, ""
        return text

    def _look_for_start(self) -> None:
        text = self._buffer.lstrip(_BLANK)
        if len(text) < len(THINK_START) and THINK_START.startswith(text):
            return
        if text.startswith(THINK_START):
            self.is_open = True
            text = text[len(THINK_START) :]
        if not self.is_open:
            self._part = "content"
            return
        self._part = "inside"
        self._buffer = text

    def _reasoning(self) -> str:
        if not self._has_told:
            self._buffer = self._buffer.lstrip(_BLANK)
        at = self._buffer.find(THINK_END)
        end = at if at >= 0 else len(self._buffer) - held_back(self._buffer, THINK_END)
        text = self._buffer[:end].rstrip(_BLANK)
        self._has_told = self._has_told or bool(text)
        if at < 0:
            self._buffer = self._buffer[len(text) :]
            return text
        self.is_open = False
        self._part = "after"
        self._buffer = self._buffer[at + len(THINK_END) :]
        return text
