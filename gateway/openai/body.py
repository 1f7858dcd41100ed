"""Bytes of a request body -> a JSON object without nulls, or InvalidRequest; and values -> JSON on one line.

Strict JSON: UTF-8, no NaN, bounded nesting. `null` means "not given" wherever it is a value of an object, so
it is dropped here, once, at every depth; inside arrays it stays, and is refused by the models. A JSON schema is left
whole: there it is a value (`"const": null`).
"""

from __future__ import annotations

from typing import Any, cast

import orjson

from shared.errors import InvalidRequest

MAX_NESTING = 64
# Line ends to readers that split lines by Unicode's rules; JSON leaves them as they are.
_LINE_ENDS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))
_SCHEMAS = frozenset({"schema", "json", "guided_json", "parameters"})


def json_object(raw: bytes) -> dict[str, Any]:
    """Raises InvalidRequest for anything but one JSON object nested at most MAX_NESTING deep."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {str(error)[:200]}") from error
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object")
    return cast("dict[str, Any]", _given(value, 1))


def json_line(value: Any) -> bytes:
    """`value` as JSON that holds no line end of any kind."""
    encoded = orjson.dumps(value)
    if not encoded.isascii():
        for line_end, escape in _LINE_ENDS:
            encoded = encoded.replace(line_end, escape)
    return encoded


def _given(value: Any, depth: int, *, is_whole: bool = False) -> Any:
    if not isinstance(value, dict | list):
        return value
    if depth > MAX_NESTING:
        raise InvalidRequest(f"the body is nested more than {MAX_NESTING} levels deep")
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {
            name: _given(item, depth + 1, is_whole=is_whole or name in _SCHEMAS)
            for name, item in items
            if item is not None or is_whole
        }
    elements = cast("list[Any]", value)
    if all(type(element) is int for element in elements):  # a long list of token ids is passed as it is
        return elements
    return [_given(element, depth + 1, is_whole=is_whole) for element in elements]
