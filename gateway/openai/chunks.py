"""Journal frames -> the chunks of a stream: a pure object per request, a fixed list of payloads per frame.

    tokens      role chunk (chat, first of the choice), then a content chunk unless the text is empty
    choice end  role chunk if none yet, then the finish chunk: exactly one per choice; with logprobs not told yet
    end         finished: usage chunk if asked, then [DONE]; anything else sets `failure` and gives nothing
    event       nothing

A chunk is spliced from constant bytes and the encoded text; nothing else is serialised per token.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from gateway.openai.identity import Identity, Wanted, usage_fields
from gateway.openai.logprobs import ChatLogprobs, CompletionLogprobs, LogprobsOf
from gateway.openai.outcome import FINISH_REASONS, failure_of, unfinished
from shared.errors import RequestFailed
from shared.schemas import ChoiceEndFrame, EndFrame, EventFrame, Frame, Outcome, TokensFrame, Usage

DONE = b"[DONE]"
# Line ends to readers that split lines by Unicode's rules; JSON leaves them as they are.
_LINE_ENDS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))


def json_text(text: str) -> bytes:
    """`text` as a JSON string that holds no line end of any kind."""
    encoded = orjson.dumps(text)
    if not text.isascii():
        for line_end, escape in _LINE_ENDS:
            encoded = encoded.replace(line_end, escape)
    return encoded


@dataclass(frozen=True, slots=True)
class ChunkShape:
    """The constant parts of an endpoint's chunks; `role` is empty where there is no such chunk."""

    prefix: str
    object: str
    role: bytes
    before_text: bytes
    after_text: bytes
    finish: bytes
    logprobs: type[ChatLogprobs] | type[CompletionLogprobs]


CHAT_CHUNKS = ChunkShape(
    prefix="chatcmpl-",
    object="chat.completion.chunk",
    role=b',"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]',
    before_text=b',"delta":{"content":',
    after_text=b'},"logprobs":',
    finish=b',"delta":{},"logprobs":',
    logprobs=ChatLogprobs,
)
COMPLETION_CHUNKS = ChunkShape(
    prefix="cmpl-",
    object="text_completion",
    role=b"",
    before_text=b',"text":',
    after_text=b',"logprobs":',
    finish=b',"text":"","logprobs":',
    logprobs=CompletionLogprobs,
)


class ChunkStream:
    """Every choice gets its role chunk once and first, its finish chunk once; nothing follows `is_done`.

    `failure` is the typed error of a stream that ended without an answer: its error frame is the caller's.
    """

    def __init__(self, shape: ChunkShape, identity: Identity, wanted: Wanted) -> None:
        n, include_usage, token_bytes = wanted.n, wanted.include_usage, wanted.token_bytes
        self.is_done = False
        self.failure: RequestFailed | None = None
        self._shape = shape
        self._include_usage = include_usage
        self._head = _head(shape, identity)
        self._tail = b',"usage":null}' if include_usage else b"}"
        self._opened = [not shape.role] * n
        self._finished = [False] * n
        self._before = [b'%b"choices":[{"index":%d%b' % (self._head, index, shape.before_text) for index in range(n)]
        self._after = b'%bnull,"finish_reason":null}]%b' % (shape.after_text, self._tail)
        self._logprobs = [LogprobsOf(shape.logprobs, token_bytes) for _ in range(n)] if token_bytes else []

    def convert(self, frame: Frame) -> list[bytes]:
        """Payloads of one frame."""
        if self.is_done:
            return []
        match frame:
            case TokensFrame(choice=index, text=text):
                if self._logprobs:
                    self._logprobs[index].add(frame)
                chunks = self._role(index)
                if text:
                    chunks.append(self._before[index] + json_text(text) + self._after_text(index))
                return chunks
            case ChoiceEndFrame(choice=index, finish_reason=reason):
                return [*self._role(index), *self._finish(index, reason)]
            case EndFrame():
                return self._end(frame)
            case EventFrame():
                return []

    def _after_text(self, index: int) -> bytes:
        if not self._logprobs:
            return self._after
        return b'%b%b,"finish_reason":null}]%b' % (self._shape.after_text, self._told(index), self._tail)

    def _told(self, index: int) -> bytes:
        """Logprobs of the tokens since the last chunk that had some."""
        if not self._logprobs or not self._logprobs[index].is_owed:
            return b"null"
        encoded = orjson.dumps(self._logprobs[index].take())
        for line_end, escape in _LINE_ENDS:
            encoded = encoded.replace(line_end, escape)
        return encoded

    def _chunk(self, index: int, rest: bytes) -> bytes:
        return b'%b"choices":[{"index":%d%b%b' % (self._head, index, rest, self._tail)

    def _role(self, index: int) -> list[bytes]:
        if self._opened[index]:
            return []
        self._opened[index] = True
        return [self._chunk(index, self._shape.role)]

    def _finish(self, index: int, reason: str) -> list[bytes]:
        if self._finished[index]:
            return []
        if reason not in FINISH_REASONS:
            return self._fail(unfinished(index))
        self._finished[index] = True
        rest = b'%b%b,"finish_reason":"%b"}]' % (self._shape.finish, self._told(index), reason.encode())
        return [self._chunk(index, rest)]

    def _end(self, end: EndFrame) -> list[bytes]:
        if end.outcome is not Outcome.FINISHED:
            return self._fail(failure_of(end))
        if not all(self._finished):
            return self._fail(unfinished(self._finished.index(False)))
        self.is_done = True
        return [self._usage(end.usage or Usage(0, 0)), DONE] if self._include_usage else [DONE]

    def _fail(self, failure: RequestFailed) -> list[bytes]:
        self.is_done = True
        self.failure = failure
        return []

    def _usage(self, usage: Usage) -> bytes:
        return b'%b"choices":[],"usage":%b}' % (self._head, orjson.dumps(usage_fields(usage)))


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
