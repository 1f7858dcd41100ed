"""Journal frames -> the events of a Responses stream, and the response they amount to: a pure object per request.

    (opening)   created; then queued where it runs in the background, else in_progress
    any frame   the first: in_progress, where it runs in the background
    tokens      what output.py makes of the text they released
    choice end  what was held back, and the end of the open item
    end         completed, incomplete or failed, with the whole response; `error` for what was cancelled

Every event is numbered from 0 and follows from the view and the journal alone: number N is the same event on every
gateway, at any time. A plain answer, and a stored one, is `response()` after the last frame.
"""

from __future__ import annotations

import time
from typing import Any

from gateway.openai.body import json_line
from gateway.openai.logprobs import ChatLogprobs, LogprobsOf, TokenBytes
from gateway.openai.outcome import FINISH_REASONS, failure_of, unfinished
from gateway.openai.responses.output import Event, Logprobs, Output
from gateway.openai.responses.view import ResponseView
from gateway.openai.tools.answer import AnswerParser
from shared.errors import HeadraceError, RequestFailed
from shared.schemas import ChoiceEndFrame, EndFrame, Frame, Outcome, TokensFrame, Usage


class ResponseEvents:
    """`status` is the API's; `ended_s` is 0 until the end. `failure` is the typed error of an end that is no answer,
    for who answers by status."""

    def __init__(
        self, view: ResponseView, request_id: str, *, token_bytes: TokenBytes | None = None, ended_s: int = 0
    ) -> None:
        """`ended_s`: when it ended, where that is known; else it ends when its last frame is converted."""
        self.is_done = False
        self.status = "queued" if view.is_background else "in_progress"
        self.failure: RequestFailed | None = None
        self._view = view
        self._request_id = request_id
        self.ended_s = ended_s
        self._parser = AnswerParser(view.answer)
        self._output = Output(request_id)
        self._logprobs = LogprobsOf(ChatLogprobs, token_bytes) if view.logprobs and token_bytes else None
        self._finish_reason: str | None = None
        self._usage: Usage | None = None
        self._reasoning_tokens = 0
        self._next_number = 0

    def opening(self) -> list[bytes]:
        """Before the first frame."""
        created = self._numbered(self._lifecycle("created"))
        return [created, self._numbered(self._lifecycle(self.status))]

    def convert(self, frame: Frame) -> list[bytes]:
        """Of one frame, in order."""
        if self.is_done:
            return []
        events = [self._lifecycle("in_progress")] if self._begins() else []
        match frame:
            case TokensFrame():
                events += self._tokens(frame)
            case ChoiceEndFrame(finish_reason=reason):
                events += self._choice_end(reason)
            case EndFrame():
                events += self._end(frame)
            case _:
                pass
        return [self._numbered(event) for event in events]

    def error(self, error: HeadraceError) -> bytes:
        """The last event of a stream that breaks off for a reason of ours."""
        return self._numbered({"type": "error", "code": error.code, "message": error.message, "param": error.param})

    def response(self) -> dict[str, Any]:
        is_completed = self.status == "completed"
        error = None
        if self.status == "failed" and self.failure is not None:
            error = {"code": "server_error", "message": self.failure.message}
        return self._view.response(
            self._request_id,
            {
                "status": self.status,
                "completed_at": self.ended_s if is_completed else None,
                "error": error,
                "incomplete_details": {"reason": "max_output_tokens"} if self.status == "incomplete" else None,
                "output": self._output.items,
                "usage": None if self._usage is None else _usage(self._usage, self._reasoning_tokens),
            },
        )

    def _begins(self) -> bool:
        """Whether this is the first frame of one that was told to be queued."""
        if self.status != "queued":
            return False
        self.status = "in_progress"
        return True

    def _tokens(self, frame: TokensFrame) -> list[Event]:
        if self._logprobs is not None:
            self._logprobs.add(frame)
        self._reasoning_tokens += len(frame.token_ids) * self._parser.is_thinking
        if not frame.text:
            return []
        deltas = self._parser.push(frame.text)
        return self._output.take(deltas, self._told()) if deltas else []

    def _choice_end(self, reason: str) -> list[Event]:
        if self._finish_reason is not None:
            return []
        self._finish_reason = reason
        events = self._output.take(self._parser.finish(), self._told())
        return events + self._output.finish("incomplete" if reason == "length" else "completed", self._told())

    def _end(self, end: EndFrame) -> list[Event]:
        self.is_done = True
        self.ended_s = self.ended_s or int(time.time())
        self._usage = end.usage
        if end.outcome is Outcome.FINISHED and self._finish_reason in FINISH_REASONS:
            self.status = "incomplete" if self._finish_reason == "length" else "completed"
            return [self._lifecycle(self.status)]
        self.failure = unfinished(0) if end.outcome is Outcome.FINISHED else failure_of(end)
        events = self._output.finish("incomplete", []) if self._output.has_open else []
        if end.outcome is Outcome.CANCELLED:
            self.status = "cancelled"
            fields = {"code": self.failure.code, "message": self.failure.message, "param": None}
            return [*events, {"type": "error", **fields}]
        self.status = "failed"
        return [*events, self._lifecycle("failed")]

    def _told(self) -> Logprobs:
        return self._logprobs.take()["content"] if self._logprobs is not None and self._logprobs.is_owed else []

    def _lifecycle(self, name: str) -> Event:
        return {"type": f"response.{name}", "response": self.response()}

    def _numbered(self, event: Event) -> bytes:
        number = self._next_number
        self._next_number += 1
        return json_line({**event, "sequence_number": number})


def _usage(usage: Usage, reasoning_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
