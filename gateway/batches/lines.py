"""The lines of a batch's input file: what one must be, and what the answer to one looks like. Pure.

    in    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
    out   {"id": "batch_req_...", "custom_id": "a", "response": {"status_code", "request_id", "body"}, "error": null}

What is wrong with a line's form fails the whole batch before any of it is computed; what is wrong with its body is
said in its answer, in the words its endpoint has for it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

MAX_LINES = 50_000
MAX_FAULTS = 100
MAX_CUSTOM_ID_CHARS = 512
_FIELDS = frozenset({"custom_id", "method", "url", "body"})
# Of a body: what a line cannot have, and why.
_SERVICE_TIERS = (None, "auto", "default")


@dataclass(frozen=True, slots=True)
class Line:
    """`body` is the JSON that its endpoint is sent."""

    number: int
    custom_id: str
    body: bytes
    model: str

    @property
    def num_prompts(self) -> int:
        """How many requests it may be in the queue: one for each prompt of a completion's list."""
        prompt = orjson.loads(self.body).get("prompt")
        is_several = isinstance(prompt, list) and not isinstance(next(iter(cast("list[Any]", prompt)), 0), int)
        return len(cast("list[Any]", prompt)) if is_several else 1

    def key_hash(self, batch_id: str) -> str:
        """Names its run: a line that is put into the queue twice is one request. No client can send such a key."""
        return hashlib.sha256(f"batch\n{batch_id}\n{self.number}".encode()).hexdigest()[:32]

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.body).hexdigest()

    def answer_id(self, batch_id: str) -> str:
        return f"batch_req_{hashlib.sha256(f'{batch_id}/{self.number}'.encode()).hexdigest()[:32]}"


class LineFault(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


def parse_line(number: int, raw: bytes, endpoint: str, max_bytes: int) -> Line:
    """Raises LineFault."""
    if len(raw) > max_bytes:
        raise LineFault("line_too_long", f"the line is longer than {max_bytes} bytes")
    try:
        fields: Any = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise LineFault("invalid_json_line", f"the line is not valid JSON: {str(error)[:200]}") from error
    if not isinstance(fields, dict):
        raise LineFault("invalid_json_line", "the line must be a JSON object")
    line = cast("dict[str, Any]", fields)
    unknown = sorted(line.keys() - _FIELDS)
    if unknown:
        name = unknown[0][:100]
        raise LineFault("unknown_parameter", f"{name}: is not a known field of a line", name)
    custom_id = line.get("custom_id")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID_CHARS:
        words = f"custom_id: must be a string of 1 to {MAX_CUSTOM_ID_CHARS} characters"
        raise LineFault("invalid_custom_id", words, "custom_id")
    if line.get("method") != "POST":
        raise LineFault("invalid_method", "method: must be 'POST'", "method")
    if line.get("url") != endpoint:
        raise LineFault("invalid_url", f"url: must be the endpoint of the batch, {endpoint}", "url")
    return Line(number, custom_id, *_checked_body(line.get("body")))


def _checked_body(value: Any) -> tuple[bytes, str]:
    if not isinstance(value, dict):
        raise LineFault("invalid_body", "body: must be a JSON object", "body")
    body = cast("dict[str, Any]", value)
    for name in ("stream", "background"):
        if body.get(name) not in (None, False):
            raise LineFault("invalid_body", f"body.{name}: a line of a batch is answered whole", f"body.{name}")
    if body.get("service_tier") not in _SERVICE_TIERS:
        words = "body.service_tier: the lines of a batch are served in a class of their own"
        raise LineFault("invalid_body", words, "body.service_tier")
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise LineFault("invalid_body", "body.model: is required", "body.model")
    return orjson.dumps(body), model


@dataclass(slots=True)
class Checked:
    """A file looked at line by line: its faults, at most MAX_FAULTS of them, and which models it asks for.

    `models`: by name, the first line that asks for it.
    """

    num_lines: int = 0
    faults: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    models: dict[str, int] = field(default_factory=dict[str, int])
    _ids: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def is_hopeless(self) -> bool:
        """Nothing that is still to come would be told."""
        return len(self.faults) >= MAX_FAULTS or self.num_lines > MAX_LINES

    def look_at(self, number: int, raw: bytes, endpoint: str, max_bytes: int) -> None:
        self.num_lines += 1
        if self.num_lines > MAX_LINES:
            self.blame(LineFault("too_many_lines", f"the file has more than {MAX_LINES} lines"), None)
            return
        try:
            line = parse_line(number, raw, endpoint, max_bytes)
            first = self._ids.setdefault(line.custom_id, number)
            if first != number:
                words = f"custom_id: {line.custom_id[:100]!r} is that of line {first} already"
                raise LineFault("duplicate_custom_id", words, "custom_id")
            self.models.setdefault(line.model, number)
        except LineFault as fault:
            self.blame(fault, number)

    def blame(self, fault: LineFault, number: int | None) -> None:
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(fault_fields(fault, number))


def fault_fields(fault: LineFault, number: int | None) -> dict[str, Any]:
    """As `errors.data` of a batch has it."""
    return {"code": fault.code, "message": fault.message, "param": fault.param, "line": number}


def answer_line(batch_id: str, line: Line, status: int, request_id: str, body: bytes) -> str:
    """Of a line that its endpoint has answered, well or not. `body` is JSON, taken as it is."""
    response = {"status_code": status, "request_id": request_id, "body": orjson.Fragment(body)}
    return _line(batch_id, line, response, None)


def usage_of(text: str) -> dict[str, int]:
    """Tokens that the answer in this line of an output file took, by the names that a batch sums them under."""
    usage: dict[str, Any] = orjson.loads(text)["response"]["body"].get("usage") or {}
    read: dict[str, int] = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    written: dict[str, int] = usage.get("completion_tokens_details") or usage.get("output_tokens_details") or {}
    return {
        "input_tokens": usage.get("prompt_tokens", usage.get("input_tokens", 0)),
        "cached_tokens": read.get("cached_tokens", 0),
        "output_tokens": usage.get("completion_tokens", usage.get("output_tokens", 0)),
        "reasoning_tokens": written.get("reasoning_tokens", 0),
    }


def unanswered_line(batch_id: str, line: Line, code: str, message: str) -> str:
    return _line(batch_id, line, None, {"code": code, "message": message})


def _line(batch_id: str, line: Line, response: Any, error: Any) -> str:
    fields = {
        "id": line.answer_id(batch_id),
        "custom_id": line.custom_id,
        "response": response,
        "error": error,
    }
    return orjson.dumps(fields).decode()
