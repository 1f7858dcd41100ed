"""What a client asks of admission beside its request: deadlines and trace, read from the headers.

A leaf: known to the routes that fill it and to the dispatcher that obeys it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from shared.errors import InvalidRequest, UnsupportedParameter

DEADLINE_HEADER = "x-headrace-deadline-ms"
READ_TIMEOUT_HEADER = "x-stainless-read-timeout"
# Promises that are not kept yet are refused, not ignored.
_NOT_YET = ("idempotency-key", "x-headrace-detach")
MAX_DEADLINE_MS = 7 * 24 * 3600 * 1000
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class AdmissionOptions:
    """Relative to now: `start_deadline_ms` is for the first token, `deadline_ms` for the end, 0 meaning none."""

    start_deadline_ms: int
    deadline_ms: int = 0
    detached: bool = False
    traceparent: str = ""


def admission_options(headers: Mapping[str, str], start_deadline_s: float) -> AdmissionOptions:
    """`headers` with lower-case names. Raises InvalidRequest for a deadline that is no positive integer."""
    for name in _NOT_YET:
        if name in headers:
            raise UnsupportedParameter(
                f"the header {name} is not supported yet: send the request without it", param=name
            )
    traceparent = headers.get("traceparent", "")
    return AdmissionOptions(
        start_deadline_ms=_start_deadline_ms(headers.get(READ_TIMEOUT_HEADER, ""), start_deadline_s),
        deadline_ms=_deadline_ms(headers.get(DEADLINE_HEADER)),
        traceparent=traceparent if _TRACEPARENT.fullmatch(traceparent) else "",
    )


def _start_deadline_ms(read_timeout: str, default_s: float) -> int:
    """How long the client itself will wait for a byte; a value that is no time (its library's own) is ignored."""
    try:
        timeout_s = float(read_timeout)
    except ValueError:
        timeout_s = default_s
    if not (math.isfinite(timeout_s) and timeout_s > 0):
        timeout_s = default_s
    return min(max(1, round(timeout_s * 1000)), MAX_DEADLINE_MS)


def _deadline_ms(value: str | None) -> int:
    if value is None:
        return 0
    if not (value.isascii() and value.isdigit() and len(value) < 12 and 0 < int(value) <= MAX_DEADLINE_MS):
        raise InvalidRequest(
            f"{DEADLINE_HEADER}: must be an integer from 1 to {MAX_DEADLINE_MS}", param=DEADLINE_HEADER
        )
    return int(value)
