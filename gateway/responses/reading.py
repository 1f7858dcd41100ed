"""A stored response read: its journal through its view, the same way its stream was made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from gateway.openai.logprobs import TokenBytes
from gateway.openai.responses.events import ResponseEvents
from gateway.openai.responses.view import ResponseView, decode_response_view
from gateway.store.responses import StoredResponse
from shared.schemas import EndFrame, ErrorInfo, Frame, Outcome, decode_frames, encode_frames

Item = dict[str, Any]
LOST = encode_frames([EndFrame(Outcome.FAILED, None, ErrorInfo("server_error", "the request was lost by the queue"))])


def view_of(stored: StoredResponse) -> ResponseView:
    view = decode_response_view(stored.request)
    assert view is not None, stored.id
    return view


def events_of(stored: StoredResponse, token_bytes: TokenBytes | None = None) -> ResponseEvents:
    """At its beginning."""
    ended_s = stored.ended_at_ms // 1000
    return ResponseEvents(view_of(stored), stored.request_id, token_bytes=token_bytes, ended_s=ended_s)


def read(stored: StoredResponse, frames: Iterable[Frame], token_bytes: TokenBytes | None = None) -> ResponseEvents:
    """After these frames."""
    events = events_of(stored, token_bytes)
    for frame in frames:
        events.convert(frame)
    return events


def response_of(stored: StoredResponse, token_bytes: TokenBytes | None = None) -> dict[str, Any]:
    """The object, as it stands: of an unfinished one without output."""
    events = read(stored, decode_frames(stored.journal), token_bytes)
    events.status = stored.status
    return events.response()


def input_of(stored: StoredResponse) -> list[Item]:
    return orjson.loads(stored.input)


def conversation_of(stored: StoredResponse) -> list[Item]:
    """What a next response is given: input and output."""
    return [*input_of(stored), *response_of(stored)["output"]]
