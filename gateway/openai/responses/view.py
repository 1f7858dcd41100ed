"""How a client sees its response: what is needed beside the journal to make its events and its object, on any gateway.

Stored with the request in the queue and, where the response is kept, in the store, as one line of JSON. A field that is
added needs a default.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.openai.identity import created_s
from gateway.openai.tools.answer import AnswerFormat

PREFIX = "resp_"


def response_id(request_id: str) -> str:
    return PREFIX + request_id


class ResponseView(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag_field="endpoint", tag="response"):
    """`echo` are the fields of the request that its answer repeats. With `logprobs`, events need a `token_bytes`."""

    model: str
    echo: dict[str, Any]
    is_background: bool = False
    logprobs: bool = False
    answer: AnswerFormat = AnswerFormat()

    def response(self, request_id: str, state: dict[str, Any]) -> dict[str, Any]:
        """The object, in the state that is told: status, output and what comes with its end."""
        return {
            "id": response_id(request_id),
            "object": "response",
            "created_at": created_s(request_id),
            "model": self.model,
            **state,
            **self.echo,
        }


def encode_response_view(view: ResponseView) -> str:
    return msgspec.json.encode(view).decode()


def decode_response_view(text: str) -> ResponseView | None:
    """None for a request of another endpoint."""
    try:
        return msgspec.json.decode(text, type=ResponseView)
    except msgspec.DecodeError:
        return None
