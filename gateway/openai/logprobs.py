"""Logprobs of a journal in OpenAI's two shapes: chat's list of entries, completions' parallel lists.

A token is told by its text and by its bytes, which may be half a character; a text that is no UTF-8 is written
`bytes:\\xf0\\x9f`, as OpenAI does. Entries stay in step with tokens, not with released text: what a stop string holds
back is told with the next chunk.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Any

from shared.schemas import TokenLogprobs, TokensFrame

TokenBytes = Callable[[int], bytes]
Told = Sequence[tuple[int, TokenLogprobs]]
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
    """Offsets are of characters, and go on from chunk to chunk."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def fields(self, told: Told) -> Fields:
        """The chosen token is among the likeliest, as one more if need be."""
        return {
            "tokens": [self._text(token_id) for token_id, _ in told],
            "token_logprobs": [of.logprob for _, of in told],
            "top_logprobs": [self._rivals(of) | {self._text(token_id): of.logprob} for token_id, of in told],
            "text_offset": [self._next_offset(token_id) for token_id, _ in told],
        }

    def _text(self, token_id: int) -> str:
        return token_text(self._token_bytes(token_id))

    def _rivals(self, of: TokenLogprobs) -> dict[str, float]:
        """Of two with one text the likelier."""
        return {self._text(token_id): logprob for token_id, logprob in reversed(of.top)}

    def _next_offset(self, token_id: int) -> int:
        offset = self._offset
        self._offset += len(self._utf8.decode(self._token_bytes(token_id)))
        return offset


class LogprobsOf:
    """Of one choice, frame by frame: collects, and hands out what was not told yet."""

    def __init__(self, shape: type[ChatLogprobs] | type[CompletionLogprobs], token_bytes: TokenBytes) -> None:
        self._shape = shape(token_bytes)
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
