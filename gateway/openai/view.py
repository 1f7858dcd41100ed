"""How a client sees its request: what turns a journal into its chunks, beside the journal.

Stored with the request at admission, as one line of JSON, so that any gateway derives the same frames. A field
that is added needs a default: views of older gateways are read for as long as results are kept.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gateway.openai.chunks import CHAT_CHUNKS, COMPLETION_CHUNKS, ChunkStream
from gateway.openai.identity import Identity, Wanted, created_s, fingerprint_of
from gateway.openai.logprobs import TokenBytes
from gateway.openai.replies import CHAT_REPLY, COMPLETION_REPLY, Reply
from gateway.openai.tools.answer import AnswerFormat

Endpoint = Literal["chat", "completion"]
_CHUNKS = {"chat": CHAT_CHUNKS, "completion": COMPLETION_CHUNKS}
_REPLIES = {"chat": CHAT_REPLY, "completion": COMPLETION_REPLY}


class View(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """`model` is the public name the client asked for. With `logprobs`, a `token_bytes` must be given to the rest.

    `prompt_ids` stand here only where chunks need them: with `token_ids`, `continuous_usage` or `is_scored`; `echo` is
    the prompt's text, where a completion repeats it, `is_scored` with its logprobs.
    """

    endpoint: Endpoint
    model: str
    n: int = 1
    include_usage: bool = False
    service_tier: str = "default"
    logprobs: bool = False
    answer: AnswerFormat = AnswerFormat()
    token_ids: bool = False
    continuous_usage: bool = False
    prompt_ids: tuple[int, ...] = ()
    echo: str = ""
    first_index: int = 0
    is_scored: bool = False

    def chunks(self, request_id: str, revision: str, token_bytes: TokenBytes | None = None) -> ChunkStream:
        identity = self._identity(request_id, revision)
        return ChunkStream(_CHUNKS[self.endpoint], identity, self._wanted(token_bytes))

    def reply(self, request_id: str, revision: str, token_bytes: TokenBytes | None = None) -> Reply:
        identity = self._identity(request_id, revision)
        return Reply(_REPLIES[self.endpoint], identity, self._wanted(token_bytes))

    def _wanted(self, token_bytes: TokenBytes | None) -> Wanted:
        return Wanted(
            n=self.n,
            include_usage=self.include_usage,
            token_bytes=token_bytes if self.logprobs else None,
            answer=self.answer,
            token_ids=self.token_ids,
            continuous_usage=self.continuous_usage,
            prompt_ids=self.prompt_ids,
            echo=self.echo,
            first_index=self.first_index,
            is_scored=self.is_scored,
        )

    def _identity(self, request_id: str, revision: str) -> Identity:
        created = created_s(request_id)
        return Identity(request_id, created, self.model, fingerprint_of(revision), self.service_tier)


def encode_view(view: View) -> str:
    return msgspec.json.encode(view).decode()


def decode_view(text: str) -> View | None:
    """None for a request that no client of these endpoints made."""
    try:
        return msgspec.json.decode(text, type=View)
    except msgspec.DecodeError:
        return None
