"""What an answer is made of, in chat's words: the deltas of its chunks, and its whole message.

Of a call id, type and name are told once, in its first delta, and never as null: clients put deltas together by
concatenating strings. Reasoning is told by both names in use, `reasoning_content` and `reasoning`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gateway.openai.body import json_line
from gateway.openai.tools.answer import TEXT_ALONE, AnswerFormat, AnswerParser
from gateway.openai.tools.deltas import CallArguments, CallEnd, CallStart, Content, Delta, Reasoning, call_id
from shared.schemas import TokensFrame

Fields = dict[str, Any]


class AnswerDeltas:
    """Of one choice. `is_plain`: its text is its content, and nothing needs to be pushed here."""

    def __init__(self, answer_format: AnswerFormat, request_id: str, choice: int) -> None:
        self.is_plain = answer_format == TEXT_ALONE
        self.reasoning_tokens = 0
        self._parser = AnswerParser(answer_format)
        self._of = request_id, choice

    def push(self, text: str, num_tokens: int) -> list[bytes]:
        """The `delta` objects of the text that `num_tokens` released."""
        self.reasoning_tokens += num_tokens * self._parser.is_thinking
        return self._rendered(self._parser.push(text))

    def finish(self) -> list[bytes]:
        return [] if self.is_plain else self._rendered(self._parser.finish())

    def finish_reason(self, reason: str) -> str:
        return self._parser.finish_reason(reason)

    def _rendered(self, deltas: Iterable[Delta]) -> list[bytes]:
        return [json_line(self._fields(delta)) for delta in deltas if not isinstance(delta, CallEnd)]

    def _fields(self, delta: Delta) -> Fields:
        match delta:
            case Content(text):
                return {"content": text}
            case Reasoning(text):
                return {"reasoning_content": text, "reasoning": text}
            case CallStart(index, name):
                function = {"name": name, "arguments": ""}
                call = {"index": index, "id": call_id(*self._of, index), "type": "function", "function": function}
                return {"tool_calls": [call]}
            case CallArguments(index, text):
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
            case CallEnd():
                return {}


class AnswerMessage:
    """Of one choice: the message that the deltas of its frames make."""

    def __init__(self, answer_format: AnswerFormat, request_id: str, choice: int) -> None:
        self.reasoning_tokens = 0
        self._parser = AnswerParser(answer_format)
        self._of = request_id, choice
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[tuple[str, list[str]]] = []

    def add(self, frame: TokensFrame) -> None:
        self.reasoning_tokens += len(frame.token_ids) * self._parser.is_thinking
        self._take(self._parser.push(frame.text))

    def finish(self) -> Fields:
        """Once, after the last frame. `content` is null beside calls or reasoning where there is none."""
        self._take(self._parser.finish())
        content = "".join(self._content)
        message: Fields = {"role": "assistant", "content": content or None, "refusal": None}
        if self._reasoning:
            message["reasoning_content"] = message["reasoning"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = [self._call(index, *call) for index, call in enumerate(self._calls)]
        elif not self._reasoning:
            message["content"] = content
        return message

    def finish_reason(self, reason: str) -> str:
        return self._parser.finish_reason(reason)

    def _call(self, index: int, name: str, arguments: list[str]) -> Fields:
        function = {"name": name, "arguments": "".join(arguments)}
        return {"id": call_id(*self._of, index), "type": "function", "function": function}

    def _take(self, deltas: Iterable[Delta]) -> None:
        for delta in deltas:
            match delta:
                case Content(text):
                    self._content.append(text)
                case Reasoning(text):
                    self._reasoning.append(text)
                case CallStart(_, name):
                    self._calls.append((name, []))
                case CallArguments(_, text):
                    self._calls[-1][1].append(text)
                case CallEnd():
                    pass
