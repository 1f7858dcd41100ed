"""Journal frames -> the one body of a plain (non-streaming) answer.

Fed the same frames as ChunkStream and giving the same text: the contents of a stream's chunks concatenate to
the text here. An end that is no answer raises its typed error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.openai.identity import Identity, Wanted, usage_fields
from gateway.openai.logprobs import ChatLogprobs, CompletionLogprobs, LogprobsOf
from gateway.openai.outcome import FINISH_REASONS, failure_of, unfinished
from shared.schemas import EndFrame, Frame, Outcome, TokensFrame, Usage, prefixes_of


@dataclass(frozen=True, slots=True)
class ReplyShape:
    """What differs between endpoints: the id's prefix, the object, and how a choice holds its text."""

    prefix: str
    object: str
    text_fields: Callable[[str], dict[str, Any]]
    logprobs: type[ChatLogprobs] | type[CompletionLogprobs]


CHAT_REPLY = ReplyShape(
    "chatcmpl-",
    "chat.completion",
    lambda text: {"message": {"role": "assistant", "content": text, "refusal": None}},
    ChatLogprobs,
)
COMPLETION_REPLY = ReplyShape("cmpl-", "text_completion", lambda text: {"text": text}, CompletionLogprobs)


class Reply:
    """Collects frames until the end; `body` may be asked for once `is_done`."""

    def __init__(self, shape: ReplyShape, identity: Identity, wanted: Wanted) -> None:
        self.is_done = False
        self._shape = shape
        self._identity = identity
        self._wanted = wanted
        self._frames: list[Frame] = []
        self._usage = Usage(0, 0)

    def add(self, frames: Iterable[Frame]) -> None:
        """Raises RequestFailed for an end that is no answer."""
        for frame in frames:
            if not isinstance(frame, EndFrame):
                self._frames.append(frame)
                continue
            self.is_done = True
            if frame.outcome is not Outcome.FINISHED:
                raise failure_of(frame)
            self._usage = frame.usage or self._usage

    def body(self) -> bytes:
        """Raises RequestFailed when a choice has no finish reason."""
        choices: list[dict[str, Any]] = []
        for index, prefix in enumerate(prefixes_of(self._frames, self._wanted.n)):
            if prefix.finish_reason not in FINISH_REASONS:
                raise unfinished(index)
            end = {"logprobs": self._logprobs(index), "finish_reason": prefix.finish_reason}
            choices.append({"index": index, **self._shape.text_fields(prefix.text), **end})
        identity = self._identity
        return orjson.dumps(
            {
                "id": self._shape.prefix + identity.request_id,
                "object": self._shape.object,
                "created": identity.created,
                "model": identity.model,
                "system_fingerprint": identity.system_fingerprint,
                "service_tier": identity.service_tier,
                "choices": choices,
                "usage": usage_fields(self._usage),
            }
        )

    def _logprobs(self, index: int) -> dict[str, Any] | None:
        if self._wanted.token_bytes is None:
            return None
        logprobs = LogprobsOf(self._shape.logprobs, self._wanted.token_bytes)
        for frame in self._frames:
            if isinstance(frame, TokensFrame) and frame.choice == index:
                logprobs.add(frame)
        return logprobs.take()
