"""Logprobs of a journal in OpenAI's two shapes: chat's list of entries, completions' parallel lists.

A token is told by its text and by its bytes, which may be half a character; a text that is no UTF-8 is written
`bytes:\\xf0\\x9f`, as OpenAI does. Entries stay in step with tokens, not with released text: what a stop string holds
back is told with the next chunk.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Any

from shared.schemas import PromptFrame, TokenLogprobs, TokensFrame

TokenBytes = Callable[[int], bytes]
Told = Sequence[tuple[int, TokenLogprobs]]
MaybeTold = Sequence[tuple[int, TokenLogprobs | None]]
Fields = dict[str, Any]


class ChatLogprobs:
    """`logprobs` of a message or of a chunk: what was made since it was last asked."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes

    def fields(self, told: Told) -> Fields:
        content = [
            self._entry(token_id, of.logprob) | {"top_logprobs": [self._entry(*rival) for rival in of.top]}
            for token_id, of in told
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token_id: int, logprob: float) -> Fields:
        raw = self._token_bytes(token_id)
        return {"token": token_text(raw), "logprob": logprob, "bytes": list(raw)}


class CompletionLogprobs:
    """Offsets are of characters, and go on from chunk to chunk; `num_before` stand before the first token."""

    def __init__(self, token_bytes: TokenBytes, num_before: int = 0) -> None:
        self._token_bytes = token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = num_before

    def fields(self, told: MaybeTold) -> Fields:
        """The chosen token is among the likeliest, as one more if need be. The first of a prompt has nothing."""
        return {
            "tokens": [self._text(token_id) for token_id, _ in told],
            "token_logprobs": [of and of.logprob for _, of in told],
            "top_logprobs": [of and self._rivals(of) | {self._text(token_id): of.logprob} for token_id, of in told],
            "text_offset": [self._next_offset(token_id) for token_id, _ in told],
        }

    def end(self) -> int:
        """The offset after the last token, and after what it left of a character."""
        return self._offset + len(self._utf8.decode(b"", True))

    def _text(self, token_id: int) -> str:
        return token_text(self._token_bytes(token_id))

    def _rivals(self, of: TokenLogprobs) -> dict[str, float]:
        """Of two with one text the likelier."""
        return {self._text(token_id): logprob for token_id, logprob in reversed(of.top)}

    def _next_offset(self, token_id: int) -> int:
        offset = self._offset
        self._offset += len(self._utf8.decode(self._token_bytes(token_id)))
        return offset


class PromptLogprobs:
    """Of a prompt that completions repeat: the same lists in each choice, asked for when its answer begins.

    `text` may be shorter than what the tokens spell, by what the tokenizer put before it (a BOS token, a space)."""

    def __init__(self, token_bytes: TokenBytes, ids: Sequence[int], text: str) -> None:
        self._shape = CompletionLogprobs(token_bytes)
        self._ids = ids
        self._num_chars = len(text)
        self._told: list[TokenLogprobs | None] = [None]
        self._fields: Fields | None = None

    def add(self, frame: PromptFrame) -> None:
        self._told += frame.logprobs

    def fields(self) -> Fields:
        if self._fields is None:
            self._fields = self._shape.fields(list(zip(self._ids, self._told, strict=True)))
            num_added = self._shape.end() - self._num_chars
            offsets: list[int] = self._fields["text_offset"]
            self._fields["text_offset"] = [min(max(offset - num_added, 0), self._num_chars) for offset in offsets]
        return self._fields


class LogprobsOf:
    """Of one choice, frame by frame: collects, and hands out what was not told yet. `echo` stands before it."""

    def __init__(
        self, shape: type[ChatLogprobs] | type[CompletionLogprobs], token_bytes: TokenBytes, echo: str = ""
    ) -> None:
        self._shape = CompletionLogprobs(token_bytes, len(echo)) if echo else shape(token_bytes)
        self._told: list[tuple[int, TokenLogprobs]] = []

    @property
    def is_owed(self) -> bool:
        return bool(self._told)

    def add(self, frame: TokensFrame) -> None:
        """A stop token has none, and is the last of its frame."""
        self._told += zip(frame.token_ids, frame.logprobs or (), strict=False)

    def take(self) -> Fields:
        told, self._told = self._told, []
        return self._shape.fields(told)


def token_text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
