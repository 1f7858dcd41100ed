"""Requests nobody means well by, from a seed: what can be wrong with a body, its type or its headers, field by field.

Endpoints and fields come from the server's own OpenAPI document, so a new endpoint is attacked as soon as it is served.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

JSON_TYPE = "application/json"
GOOD: dict[str, Any] = {
    "model": "simulated", "messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "input": "hi",
    "max_tokens": 2, "max_output_tokens": 2, "tokens": [1, 2],
}  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 1.5, -0.0, 1e308, 10**30, -(2**63), 2**64, "", "x", "\x00", "é" * 300, "\u2028", "😀",
    "x" * 100_000, [], [[]], [None], [{}], {}, {"": None}, {"a": {"b": [1, "x", None]}}, ["x"] * 5000, [0] * 20_000,
    [1e400], "Infinity", "../../etc/passwd", {"type": "function"}, {"type": "json_schema", "json_schema": {}},
    [{"role": "user", "content": None}], [{"role": "user"}] * 50, {"$ref": "#"},
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Hostile:
    """`kind` names what is wrong with it."""

    kind: str
    path: str
    content: bytes
    headers: dict[str, str] = field(default_factory=dict[str, str])
    method: str = "POST"


Fields = dict[str, list[str]]
_Made = tuple[bytes, dict[str, str]]


def fields_of(document: dict[str, Any]) -> Fields:
    """Path -> names of the fields of its JSON body; the operator's are left alone."""
    found: Fields = {}
    for path, operations in document["paths"].items():
        body = operations.get("post", {}).get("requestBody", {}).get("content", {})
        if body and not path.startswith("/operator/"):
            schema = next(iter(body.values())).get("schema", {})
            found[path] = [*schema.get("properties", {}), "unknown_field"]
    return found


def hostile_requests(fields: Fields, seed: int, count: int) -> Iterator[Hostile]:
    rng = random.Random(seed)
    kinds = list(_KINDS)
    for number in range(count):
        kind = kinds[number % len(kinds)]
        path = rng.choice(list(fields))
        content, headers = _KINDS[kind](rng, fields[path])
        url = path.replace("{", "").replace("}", "") if rng.random() < 0.97 else f"{path}/{rng.choice(_PATHS)}"
        yield Hostile(kind, url, content, {"content-type": JSON_TYPE} | headers)


def _body(rng: random.Random, names: list[str]) -> dict[str, Any]:
    """What would do, of the fields this endpoint has."""
    return {name: value for name, value in GOOD.items() if name in names} | {"stream": rng.random() < 0.2}


def _dumped(body: Any) -> bytes:
    return json.dumps(body).encode()


def _wrong_value(rng: random.Random, names: list[str]) -> _Made:
    body = _body(rng, names)
    for name in rng.sample(names, k=min(len(names), rng.randint(1, 3))):
        body[name] = rng.choice(VALUES)
    return _dumped(body), {}


def _nulls(rng: random.Random, names: list[str]) -> _Made:
    return _dumped(_body(rng, names) | dict.fromkeys(rng.sample(names, k=rng.randint(1, len(names))))), {}


def _nesting(rng: random.Random, names: list[str]) -> _Made:
    depth = rng.choice((10, 63, 64, 65, 500, 5000, 100_000))
    opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
    inner = b"1" if opening == b'{"a":' else b""
    head = _dumped(_body(rng, names))[:-1] + b', "%b": ' % rng.choice(names).encode()
    return head + opening * depth + inner + closing * depth + b"}", {}


def _number(rng: random.Random, names: list[str]) -> _Made:
    number = rng.choice(
        (b"9" * 5000, b"1e999", b"-1e999", b"NaN", b"-Infinity", b"0x10", b"01", b"1" + b"0" * 400, b"-0")
    )
    return _dumped(_body(rng, names))[:-1] + b', "%b": %b}' % (rng.choice(names).encode(), number), {}


def _text(rng: random.Random, names: list[str]) -> _Made:
    odd = (
        b'"\\ud800"',
        b'"\\udfff\\ud800"',
        b'"\xff\xfe"',
        b'"\xed\xa0\x80"',
        b'"\\u0000"',
        b'"\xf4\x90\x80\x80"',
        b'"a\nb"',
    )
    value = rng.choice(odd)
    if rng.random() < 0.5:
        message = b'[{"role": "user", "content": %b}]' % value
        return _dumped(_body(rng, names))[:-1] + b', "messages": %b, "prompt": %b, "input": %b}' % (
            message,
            value,
            value,
        ), {}
    return _dumped(_body(rng, names))[:-1] + b', "%b": %b}' % (rng.choice(names).encode(), value), {}


def _twice(rng: random.Random, names: list[str]) -> _Made:
    name = rng.choice(names).encode()
    pairs = b", ".join(b'"%b": %b' % (name, _dumped(rng.choice(VALUES[:12]))) for _ in range(rng.choice((2, 50, 2000))))
    return b"{" + pairs + b", " + _dumped(_body(rng, names))[1:], {}


def _truncated(rng: random.Random, names: list[str]) -> _Made:
    whole = _dumped(_body(rng, names) | {rng.choice(names): rng.choice(VALUES)})
    return whole[: rng.randrange(len(whole))], {}


def _noise(rng: random.Random, names: list[str]) -> _Made:
    choice = rng.random()
    if choice < 0.5:
        return rng.randbytes(rng.randint(0, 3000)), {}
    return _dumped(rng.choice(VALUES)), {}


def _content_type(rng: random.Random, names: list[str]) -> _Made:
    kinds = ("", "text/plain",
             "multipart/form-data", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded",
             "application/json; charset=utf-16", "application/JSON", "x" * 500)  # fmt: skip
    headers = {"content-type": rng.choice(kinds)}
    if rng.random() < 0.3:
        headers = {"content-encoding": rng.choice(("gzip", "br", "zstd"))}
    return _dumped(_body(rng, names)), headers


def _headers(rng: random.Random, names: list[str]) -> _Made:
    name = rng.choice(
        ("idempotency-key", "x-headrace-deadline-ms", "x-headrace-detach", "x-stainless-read-timeout", "traceparent",
         "authorization", "x-request-id", "x-client-request-id", "last-event-id", "origin", "accept", "x-odd")
    )  # fmt: skip
    value = rng.choice(
        ("", "0", "-1", "nan", "inf", "1e999", "x" * 4000, "x" * 40_000, "é", "\t a \t", "true", "9" * 400)
    )
    return _dumped(_body(rng, names)), {name: value}


_PATHS = ("%00", "%2e%2e", "..%2f..", "x" * 3000, "%ff%fe", "?stream=1&stream=2", "%F0%9F%98%80")
_KINDS: dict[str, Callable[[random.Random, list[str]], _Made]] = {
    "wrong value": _wrong_value, "wrong values again": _wrong_value, "nulls": _nulls, "nesting": _nesting,
    "number": _number, "text": _text, "a key twice": _twice, "truncated": _truncated, "noise": _noise,
    "content type": _content_type, "header": _headers,
}  # fmt: skip
