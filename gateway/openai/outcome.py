"""How a journal ends, in the terms of the API: the typed error of an end that is no answer, and finish reasons.

The same error becomes a status or an in-stream error frame; engine words never reach a client as a
`finish_reason`.
"""

from __future__ import annotations

from shared.errors import DeadlineExceeded, RequestCancelled, RequestFailed
from shared.schemas import EndFrame, Outcome

FINISH_REASONS = frozenset({"stop", "length"})

_FAILURES: dict[Outcome, tuple[type[RequestFailed], str]] = {
    Outcome.CANCELLED: (RequestCancelled, "the request was cancelled"),
    Outcome.EXPIRED: (DeadlineExceeded, "the request's deadline passed before it was done"),
    Outcome.FAILED: (RequestFailed, "the request failed"),
    Outcome.DEAD: (RequestFailed, "the request was given up after repeated crashes of its workers"),
}


def failure_of(end: EndFrame) -> RequestFailed:
    """The error of an `end` whose outcome is not finished."""
    kind, words = _FAILURES[end.outcome]
    if end.error is None:
        return kind(words)
    return kind(end.error.message, code=end.error.code)


def unfinished(index: int) -> RequestFailed:
    return RequestFailed(f"choice {index} ended without a finish reason")
