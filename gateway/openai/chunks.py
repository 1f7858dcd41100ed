"""Journal frames -> the chunks of a stream: a pure object per request, a fixed list of payloads per frame.

    tokens      opening chunk (first of the choice: chat's role, or an echo), then a chunk for each delta in its text
    choice end  opening chunk if none yet, what a parser held back, then the finish chunk: exactly one per choice
    end         finished: usage chunk if asked, then [DONE]; anything else sets `failure` and gives nothing
    prompt      nothing: its logprobs go with its echo
    event       nothing

Logprobs and token ids not told yet go with the next chunk of their choice. A chunk is spliced from constant bytes and
the encoded text; nothing else is serialised per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from gateway.openai.body import json_line
from gateway.openai.identity import Identity, Wanted, summed, usage_fields
from gateway.openai.logprobs import ChatLogprobs, CompletionLogprobs, LogprobsOf
from gateway.openai.outcome import FINISH_REASONS, failure_of, unfinished
from gateway.openai.tools.rendering import AnswerDeltas
from shared.errors import RequestFailed
from shared.schemas import ChoiceEndFrame, EndFrame, EventFrame, Frame, Outcome, PromptFrame, TokensFrame, Usage

DONE = b"[DONE]"


@dataclass(frozen=True, slots=True)
class ChunkShape:
    """The constant parts of an endpoint's chunks; `opening` is empty where there is no such chunk."""

    prefix: str
    object: str
    opening: bytes
    before_text: bytes
    after_text: bytes
    finish: bytes
    logprobs: type[ChatLogprobs] | type[CompletionLogprobs]


CHAT_CHUNKS = ChunkShape(
    prefix="chatcmpl-",
    object="chat.completion.chunk",
    opening=b',"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]',
    before_text=b',"delta":{"content":',
    after_text=b"}",
    finish=b',"delta":{}',
    logprobs=ChatLogprobs,
)
COMPLETION_CHUNKS = ChunkShape(
    prefix="cmpl-",
    object="text_completion",
    opening=b"",
    before_text=b',"text":',
    after_text=b"",
    finish=b',"text":""',
    logprobs=CompletionLogprobs,
)


@dataclass(slots=True)
class SoFar:
    """What usage in every chunk is told from."""

    prompt_tokens: int
    completion_tokens: int = 0


class ChunkStream:
    """Every choice gets its opening chunk once and first, its finish chunk once; nothing follows `is_done`.

    `failure` is the typed error of a stream that ended without an answer: its error frame is the caller's.
    """

    def __init__(self, shape: ChunkShape, identity: Identity, wanted: Wanted) -> None:
        choices = range(wanted.n)
        self.is_done = False
        self.failure: RequestFailed | None = None
        self._shape = shape
        self._wanted = wanted
        self._head = self._next_head = _head(shape, identity)
        if wanted.token_ids:
            self._next_head += b'"prompt_token_ids":%b,' % json_line(wanted.prompt_ids)
        self._prompt = wanted.scored_prompt()
        self._opening = shape.opening if not wanted.echo else _echo_chunk(wanted.echo)
        self._opened = [not self._opening and self._prompt is None] * wanted.n
        self._finished = [False] * wanted.n
        self._before = [b'"choices":[{"index":%d' % (wanted.first_index + index) for index in choices]
        self._plain = b',"logprobs":null,"finish_reason":null}]' + (b',"usage":null}' if wanted.include_usage else b"}")
        self._is_plain = not (wanted.token_bytes or wanted.token_ids or wanted.continuous_usage)
        token_bytes = wanted.token_bytes
        self._logprobs = [LogprobsOf(shape.logprobs, token_bytes, wanted.echo) for _ in choices] if token_bytes else []
        self._ids: list[list[int]] = [[] for _ in choices]
        self.so_far = SoFar(len(wanted.prompt_ids))
        self._answers = [AnswerDeltas(wanted.answer, identity.request_id, index) for index in choices]

    def convert(self, frame: Frame) -> list[bytes]:
        """Payloads of one frame."""
        if self.is_done:
            return []
        match frame:
            case TokensFrame(choice=index):
                self._count(frame)
                return [*self._opening_of(index), *self._text_of(index, frame)]
            case ChoiceEndFrame(choice=index, finish_reason=reason):
                return [*self._opening_of(index), *self._finish(index, reason)]
            case EndFrame():
                return self._end(frame)
            case PromptFrame():
                return self._score(frame)
            case EventFrame():
                return []

    def _score(self, frame: PromptFrame) -> list[bytes]:
        if self._prompt is not None:
            self._prompt.add(frame)
        return []

    def _count(self, frame: TokensFrame) -> None:
        self.so_far.completion_tokens += len(frame.token_ids)
        if self._wanted.token_ids:
            self._ids[frame.choice] += frame.token_ids
        if self._logprobs:
            self._logprobs[frame.choice].add(frame)

    def _text_of(self, index: int, frame: TokensFrame) -> list[bytes]:
        answer, shape = self._answers[index], self._shape
        if not answer.is_plain:
            deltas = answer.push(frame.text, len(frame.token_ids))
            return [self._chunk(index, b',"delta":' + delta) for delta in deltas]
        if not frame.text:
            return []
        return [self._chunk(index, shape.before_text + json_line(frame.text) + shape.after_text)]

    def _chunk(self, index: int, rest: bytes, finish_reason: bytes = b"null") -> bytes:
        """One choice's, with what of it was not told yet."""
        head, self._next_head = self._next_head, self._head
        if self._is_plain and finish_reason == b"null":
            return b"".join((head, self._before[index], rest, self._plain))
        end = b'%b,"finish_reason":%b}]%b}' % (self._untold(index), finish_reason, self._usage_beside())
        return b"".join((head, self._before[index], rest, end))

    def _untold(self, index: int) -> bytes:
        logprobs = (
            json_line(self._logprobs[index].take()) if self._logprobs and self._logprobs[index].is_owed else b"null"
        )
        if not self._wanted.token_ids:
            return b',"logprobs":' + logprobs
        ids, self._ids[index] = self._ids[index], []
        return b',"logprobs":%b,"token_ids":%b' % (logprobs, json_line(ids))

    def _usage_beside(self) -> bytes:
        if self._wanted.continuous_usage:
            usage = Usage(self.so_far.prompt_tokens, self.so_far.completion_tokens)
            return b',"usage":' + json_line(usage_fields(usage))
        return b',"usage":null' if self._wanted.include_usage else b""

    def _opening_of(self, index: int) -> list[bytes]:
        if self._opened[index]:
            return []
        if self._prompt is not None and not any(self._opened):
            self._opening = _echo_chunk(self._wanted.echo, json_line(self._prompt.fields()))
        self._opened[index] = True
        head, self._next_head = self._next_head, self._head
        return [b"".join((head, self._before[index], self._opening, self._usage_beside(), b"}"))]

    def _finish(self, index: int, reason: str) -> list[bytes]:
        if self._finished[index]:
            return []
        if reason not in FINISH_REASONS:
            return self._fail(unfinished(index))
        self._finished[index] = True
        answer = self._answers[index]
        chunks = [self._chunk(index, b',"delta":' + delta) for delta in answer.finish()]
        return [*chunks, self._chunk(index, self._shape.finish, b'"%b"' % answer.finish_reason(reason).encode())]

    def _end(self, end: EndFrame) -> list[bytes]:
        if end.outcome is not Outcome.FINISHED:
            return self._fail(failure_of(end))
        if not all(self._finished):
            return self._fail(unfinished(self._finished.index(False)))
        self.is_done = True
        return self.closing(end.usage or Usage(0, 0))

    def closing(self, usage: Usage) -> list[bytes]:
        """What ends a stream, after the chunks of its choices."""
        return [self._usage(usage), DONE] if self._wanted.include_usage else [DONE]

    def _fail(self, failure: RequestFailed) -> list[bytes]:
        self.is_done = True
        self.failure = failure
        return []

    def _usage(self, usage: Usage) -> bytes:
        fields = usage_fields(usage, sum(answer.reasoning_tokens for answer in self._answers))
        return b'%b"choices":[],"usage":%b}' % (self._head, orjson.dumps(fields))


class MergedChunks:
    """The streams of several prompts as one: their chunks as they come, then one end. One that fails ends all.

    The `parts` have the same identity, and number their choices on.
    """

    def __init__(self, parts: Sequence[ChunkStream]) -> None:
        self.is_done = False
        self.failure: RequestFailed | None = None
        self._parts = parts
        self._usages: list[Usage] = []
        so_far = SoFar(sum(part.so_far.prompt_tokens for part in parts))
        for part in parts:
            part.so_far = so_far

    def convert(self, numbered: tuple[int, Frame]) -> list[bytes]:
        """Payloads of one frame, of the part with this number."""
        index, frame = numbered
        part = self._parts[index]
        if self.is_done or part.is_done:
            return []
        payloads = part.convert(frame)
        if part.failure is not None:
            self.failure, self.is_done = part.failure, True
        if not isinstance(frame, EndFrame) or self.is_done:
            return payloads
        self._usages.append(frame.usage or Usage(0, 0))
        if len(self._usages) < len(self._parts):
            return []
        self.is_done = True
        return part.closing(summed(self._usages))


def _echo_chunk(text: str, logprobs: bytes = b"null") -> bytes:
    """A completion's prompt, before its answer."""
    return b',"text":%b,"logprobs":%b,"finish_reason":null}]' % (json_line(text), logprobs)


def _head(shape: ChunkShape, identity: Identity) -> bytes:
    """`{"id":...,` up to the comma before `"choices"`."""
    fields = {
        "id": shape.prefix + identity.request_id,
        "object": shape.object,
        "created": identity.created,
        "model": identity.model,
        "system_fingerprint": identity.system_fingerprint,
        "service_tier": identity.service_tier,
    }
    return orjson.dumps(fields)[:-1] + b","
