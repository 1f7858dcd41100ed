"""Journal frames -> the one body of a plain (non-streaming) answer.

Fed the same frames as ChunkStream and giving the same text: the contents of a stream's chunks concatenate to
the text here. An end that is no answer raises its typed error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.openai.identity import Identity, Wanted, summed, usage_fields
from gateway.openai.logprobs import ChatLogprobs, CompletionLogprobs, LogprobsOf, PromptLogprobs
from gateway.openai.outcome import FINISH_REASONS, failure_of, unfinished
from gateway.openai.tools.rendering import AnswerMessage
from shared.schemas import ChoiceEndFrame, EndFrame, Frame, Outcome, PromptFrame, TokensFrame, Usage

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReplyShape:
    """What differs between endpoints: the id's prefix, the object, whether a choice holds a message or a text."""

    prefix: str
    object: str
    has_message: bool
    logprobs: type[ChatLogprobs] | type[CompletionLogprobs]


CHAT_REPLY = ReplyShape("chatcmpl-", "chat.completion", True, ChatLogprobs)
COMPLETION_REPLY = ReplyShape("cmpl-", "text_completion", False, CompletionLogprobs)


class Reply:
    """Collects frames until the end; `body` may be asked for once `is_done`."""

    def __init__(self, shape: ReplyShape, identity: Identity, wanted: Wanted) -> None:
        self.is_done = False
        self._shape = shape
        self._identity = identity
        self._wanted = wanted
        self._prompt = wanted.scored_prompt()
        self._choices = [_Choice(shape, identity, wanted, index) for index in range(wanted.n)]
        self.usage = Usage(0, 0)

    def add(self, frames: Iterable[Frame]) -> None:
        """Raises RequestFailed for an end that is no answer."""
        for frame in frames:
            if isinstance(frame, TokensFrame | ChoiceEndFrame):
                self._choices[frame.choice].add(frame)
            elif isinstance(frame, PromptFrame) and self._prompt is not None:
                self._prompt.add(frame)
            elif isinstance(frame, EndFrame):
                self.is_done = True
                if frame.outcome is not Outcome.FINISHED:
                    raise failure_of(frame)
                self.usage = frame.usage or self.usage

    def body(self) -> bytes:
        """Raises RequestFailed when a choice has no finish reason."""
        return orjson.dumps(self.fields())

    def fields(self) -> Fields:
        """Once. As `body`."""
        choices = [choice.fields(self._prompt) for choice in self._choices]
        identity = self._identity
        fields: Fields = {
            "id": self._shape.prefix + identity.request_id,
            "object": self._shape.object,
            "created": identity.created,
            "model": identity.model,
            "system_fingerprint": identity.system_fingerprint,
            "service_tier": identity.service_tier,
            "choices": choices,
            "usage": usage_fields(self.usage, sum(choice.reasoning_tokens for choice in self._choices)),
        }
        return fields | {"prompt_token_ids": self._wanted.prompt_ids} if self._wanted.token_ids else fields


class MergedReply:
    """The answers to several prompts as one. The `parts` have the same identity, and number their choices on."""

    def __init__(self, parts: Sequence[Reply]) -> None:
        self._parts = parts

    @property
    def is_done(self) -> bool:
        return all(part.is_done for part in self._parts)

    def add(self, numbered: Iterable[tuple[int, Frame]]) -> None:
        """Frames, each of the part with its number. Raises RequestFailed for an end that is no answer."""
        for index, frame in numbered:
            self._parts[index].add([frame])

    def body(self) -> bytes:
        """As Reply's; where token ids are asked for, `prompt_token_ids` has a list for each prompt."""
        parts = [part.fields() for part in self._parts]
        fields = parts[0] | {"choices": [choice for part in parts for choice in part["choices"]]}
        fields["usage"] = usage_fields(summed(part.usage for part in self._parts))
        if "prompt_token_ids" in fields:
            fields["prompt_token_ids"] = [part["prompt_token_ids"] for part in parts]
        return orjson.dumps(fields)


class _Choice:
    def __init__(self, shape: ReplyShape, identity: Identity, wanted: Wanted, index: int) -> None:
        self._index = index
        self._shape = shape
        self._wanted = wanted
        self._message = AnswerMessage(wanted.answer, identity.request_id, index)
        token_bytes = wanted.token_bytes
        self._logprobs = LogprobsOf(shape.logprobs, token_bytes, wanted.echo) if token_bytes else None
        self._token_ids: list[int] = []
        self._reason: str | None = None

    @property
    def reasoning_tokens(self) -> int:
        return self._message.reasoning_tokens

    def add(self, frame: TokensFrame | ChoiceEndFrame) -> None:
        if isinstance(frame, ChoiceEndFrame):
            self._reason = self._reason or frame.finish_reason
            return
        self._message.add(frame)
        self._token_ids += frame.token_ids
        if self._logprobs:
            self._logprobs.add(frame)

    def fields(self, prompt: PromptLogprobs | None) -> Fields:
        if self._reason not in FINISH_REASONS:
            raise unfinished(self._index)
        message = self._message.finish()
        answer: Fields = {"message": message}
        if not self._shape.has_message:
            answer = {"text": self._wanted.echo + message["content"]}
        return {
            "index": self._wanted.first_index + self._index,
            **answer,
            "logprobs": self._told(prompt),
            "finish_reason": self._message.finish_reason(self._reason),
            **({"token_ids": self._token_ids} if self._wanted.token_ids else {}),
        }

    def _told(self, prompt: PromptLogprobs | None) -> Fields | None:
        own = self._logprobs.take() if self._logprobs else None
        if own is None or prompt is None:
            return own
        return {name: before + own[name] for name, before in prompt.fields().items()}
