"""Journal frames -> the one body of a plain (non-streaming) answer.

Fed the same frames as ChunkStream and giving the same text: the contents of a stream's chunks concatenate to
the text here. An end that is no answer raises its typed error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.openai.identity import Identity, usage_fields
from gateway.openai.outcome import FINISH_REASONS, failure_of, unfinished
from shared.schemas import EndFrame, Frame, Outcome, Usage, prefixes_of


@dataclass(frozen=True, slots=True)
class ReplyShape:
    """What differs between endpoints: the id's prefix, the object, and how a choice holds its text."""

    prefix: str
    object: str
    text_fields: Callable[[str], dict[str, Any]]


CHAT_REPLY = ReplyShape(
    "chatcmpl-",
    "chat.completion",
    lambda text: {"message": {"role": "assistant", "content": text, "refusal": None}},
)
COMPLETION_REPLY = ReplyShape("cmpl-", "text_completion", lambda text: {"text": text})


class Reply:
    """Collects frames until the end; `body` may be asked for once `is_done`."""

    def __init__(self, shape: ReplyShape, identity: Identity, *, n: int) -> None:
        self.is_done = False
        self._shape = shape
        self._identity = identity
        self._n = n
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
        for index, prefix in enumerate(prefixes_of(self._frames, self._n)):
            if prefix.finish_reason not in FINISH_REASONS:
                raise unfinished(index)
            end = {"logprobs": None, "finish_reason": prefix.finish_reason}
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
