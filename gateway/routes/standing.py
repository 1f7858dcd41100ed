"""What is told of one request: the headers of a plain reply, and the body of `GET /v1/requests/{id}`.

Every figure is the server's: read from the request's hash and its journal, by the one clock that decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.lookup import Found, Place
from gateway.openai.identity import created_s
from gateway.openai.view import decode_view
from shared.registry import RequestRecord
from shared.schemas import EventFrame

PLACE_HEADER = "x-headrace-queue-position"
ETA_HEADER = "x-headrace-queue-eta-ms"
WORKER_HEADER = "x-headrace-worker"
TIMINGS_HEADER = "x-headrace-timings"
DURABILITY_HEADER = "x-headrace-durability"


def place_headers(place: Place | None) -> dict[str, str]:
    """Where it stood when it was admitted."""
    if place is None:
        return {}
    headers = {PLACE_HEADER: str(place.position)}
    return headers if place.eta_ms is None else headers | {ETA_HEADER: str(place.eta_ms)}


def work_headers(record: RequestRecord) -> dict[str, str]:
    """Who made it, and how long what took."""
    timings = ", ".join(f"{name}={value}" for name, value in timings_of(record).items() if value is not None)
    return {WORKER_HEADER: record.worker, TIMINGS_HEADER: f"{timings}, attempts={record.attempt}"}


def timings_of(record: RequestRecord) -> dict[str, int | None]:
    """Milliseconds since admission; None for what has not happened. `queue_ms` is to the last take."""

    def since(at: int) -> int | None:
        return at - record.admitted_at if at else None

    return {
        "queue_ms": since(record.taken_at),
        "first_token_ms": since(record.first_token_at),
        "total_ms": since(record.finished_at),
    }


def description(found: Found, place: Place | None, events: Sequence[EventFrame]) -> dict[str, Any]:
    record, view = found.record, decode_view(found.record.view)
    return {
        "id": record.request_id,
        "object": "request",
        "created": created_s(record.request_id) if view else record.admitted_at // 1000,
        "status": record.state.value,
        "model": view.model if view else found.model.rpartition("@")[0],
        "service_tier": record.service_class,
        "queue": None if place is None else {"position": place.position, "eta_ms": place.eta_ms},
        "worker": record.worker or None,
        "attempts": record.attempt,
        "prompt_tokens": record.prompt_tokens,
        "completion_tokens": record.num_tokens,
        "timings": timings_of(record),
        "events": [{"event": event.name, **event.detail} for event in events],
        "error": record.error or None,
    }
