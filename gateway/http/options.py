"""What a client asks of admission beside its request: deadlines, idempotency key, detaching, trace.

A leaf: known to the routes that fill it and to the dispatcher that obeys it.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from gateway.openai.protocol import MAX_DEADLINE_MS
from shared.access.entries import ANONYMOUS, Tenant
from shared.errors import InvalidRequest

DEADLINE_HEADER = "x-headrace-deadline-ms"
READ_TIMEOUT_HEADER = "x-stainless-read-timeout"
KEY_HEADER = "idempotency-key"
DETACH_HEADER = "x-headrace-detach"
STRICT_HEADER = "x-headrace-strict"
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class AdmissionOptions:
    """Relative to now: `start_deadline_ms` is for the first token, `deadline_ms` for the end, 0 meaning none.

    `key_hash` and `body_digest` name an idempotent request, `view` how its client sees it (gateway/openai/view.py).
    `is_kept_elsewhere`: who asks keeps the request durably, and asks again if it is lost. `has_alternatives`: other
    models may be asked for it too; `is_tentative`: one is, if this one refuses; `fallback`: why this one is asked in
    another's place, '' where it is not.
    """

    start_deadline_ms: int
    deadline_ms: int = 0
    detached: bool = False
    is_kept_elsewhere: bool = False
    traceparent: str = ""
    key_hash: str = ""
    body_digest: str = ""
    view: str = ""
    tenant: Tenant = ANONYMOUS
    has_alternatives: bool = False
    is_tentative: bool = False
    fallback: str = ""


def admission_options(headers: Mapping[str, str], start_deadline_s: float) -> AdmissionOptions:
    """`headers` with lower-case names. Raises InvalidRequest for a header that cannot be meant."""
    traceparent = headers.get("traceparent", "")
    return AdmissionOptions(
        start_deadline_ms=_start_deadline_ms(headers.get(READ_TIMEOUT_HEADER, ""), start_deadline_s),
        deadline_ms=_deadline_ms(headers.get(DEADLINE_HEADER)),
        detached=_is_true(headers, DETACH_HEADER),
        traceparent=traceparent if _TRACEPARENT.fullmatch(traceparent) else "",
        key_hash=_key_hash(headers.get(KEY_HEADER)),
    )


def is_strict(headers: Mapping[str, str], *, default: bool) -> bool:
    """Whether fields that would have no effect are to be refused."""
    return _is_true(headers, STRICT_HEADER, default=default)


def digest_of(endpoint: str, body: bytes) -> str:
    """What makes two bodies the same to an idempotency key: the endpoint, and the JSON but for spacing and order."""
    canonical = orjson.dumps(orjson.loads(body), option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(endpoint.encode() + b"\n" + canonical).hexdigest()


def part_key(key_hash: str, index: int) -> str:
    """Of one of several prompts: a repeated request finds the run of each. The first has the key of all."""
    if not (key_hash and index):
        return key_hash
    return hashlib.sha256(f"prompt\n{key_hash}\n{index}".encode()).hexdigest()[:32]


def _key_hash(value: str | None) -> str:
    if value is None:
        return ""
    if not _KEY.fullmatch(value):
        raise InvalidRequest(f"{KEY_HEADER}: must be 1 to 255 printable characters without blanks", param=KEY_HEADER)
    return hashlib.sha256(value.encode()).hexdigest()[:32]


def _is_true(headers: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    value = headers.get(name)
    if value is None:
        return default
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise InvalidRequest(f"{name}: must be true or false", param=name)


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
