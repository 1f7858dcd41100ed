"""docs/api.md from the OpenAPI document: a section an endpoint, a row a field with what is done with it, the errors.

`make api-page` writes it; a test holds it to what is served. A field is honoured if the body's model has it; has no
effect, or is refused, as the endpoint's lists say (`x-headrace-fields`, by gateway/routes/documentation.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import orjson

from gateway.http.errors import UNROUTED
from gateway.reference.failures import failures

_Node = dict[str, Any]
MAX_DEPTH = 3
_INTRO = """# API reference

Written by `make api-page` from the OpenAPI document (`GET /openapi.json`) and the code's own lists; do not edit. How to
use what goes beyond OpenAI's API is told in [clients.md](clients.md).

A field's `null` is the same as not giving it. Any field that is not listed is refused with 400, code
`unknown_parameter`. *honoured* fields do what they say, or are refused with the bound they exceed; what has *no effect*
is accepted, with the reason; what is *refused* is so with 400, code `unsupported_parameter`, unless its value asks for
nothing.
"""
_ERRORS = """## Errors

Every error is `{"error": {"message", "type", "param", "code"}}`: a body with this status or, once a stream has begun,
its last frame before `[DONE]`. Every reply has `x-request-id`. *Repeated*: whether the official clients send it again.

| exception | status | type | code | param | repeated |
|---|---|---|---|---|---|
"""


def page(document: _Node) -> str:
    """The whole page, as Markdown."""
    parts = [_INTRO]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts.append(_section(method, path, operation))
    return "\n".join(parts) + "\n" + _ERRORS + "".join(_error_rows())


def _section(method: str, path: str, operation: _Node) -> str:
    lines = [f"## {method.upper()} {path}", ""]
    if operation.get("description"):
        lines += [" ".join(str(operation["description"]).split()), ""]
    parameters = cast("list[_Node]", operation.get("parameters", []))
    body = cast("_Node", operation.get("requestBody", {}))
    if parameters:
        lines += ["| parameter | in | takes |", "|---|---|---|"]
        lines += [f"| `{p['name']}` | {p['in']} | {_takes(p['schema'])} |" for p in parameters] + [""]
    for kind, content in cast("_Node", body.get("content", {})).items():
        lines += [f"Body: `{kind}`.", "", "| field | takes | we |", "|---|---|---|"]
        lines += [*_field_rows(content.get("schema", {}), operation.get("x-headrace-fields", {})), ""]
    lines += [f"Answers: {_answers(operation['responses'])}.", ""]
    return "\n".join(lines)


def _answers(responses: _Node) -> str:
    told: list[str] = []
    for status, response in responses.items():
        if status.startswith("2"):
            told += [f"{status} `{kind}`" for kind in response.get("content", {})] or [status]
    return ", ".join(told)


def _field_rows(schema: _Node, lists: _Node) -> Iterator[str]:
    no_effect, refused = cast("_Node", lists.get("no_effect", {})), cast("_Node", lists.get("refused", {}))
    honoured = {n: s for n, s in schema.get("properties", {}).items() if n not in no_effect and n not in refused}
    for name, field, is_required in _fields({**schema, "properties": honoured}, "", 1):
        why = (
            f"no effect: {no_effect[name]}"
            if name in no_effect
            else _done(field, lists.get("done", "honoured"), is_required)
        )
        yield f"| `{name}` | {_takes(field)} | {why} |"
    for name, why in sorted(no_effect.items()):
        if "." not in name:
            yield f"| `{name}` | anything | no effect: {why} |"
    for name, neutral in sorted(refused.items()):
        shown = ", ".join(f"`{_json(value)}`" for value in cast("list[Any]", neutral))
        yield f"| `{name}` | {shown or 'nothing'} | refused otherwise |"


def _done(field: _Node, done: str, is_required: bool) -> str:
    words = "required" if is_required else done
    return f"{words}: {field['description']}" if field.get("description") else words


def _fields(schema: _Node, prefix: str, depth: int) -> Iterator[tuple[str, _Node, bool]]:
    """Name, schema, whether it must be given; the required ones first, parts of objects below their object."""
    required = cast("list[str]", schema.get("required", []))
    properties = cast("_Node", schema.get("properties", {}))
    for name in sorted(properties, key=lambda name: name not in required):
        field = properties[name]
        yield prefix + name, field, name in required
        if depth < MAX_DEPTH:
            for inner, suffix in _inner(field):
                yield from _fields(inner, f"{prefix}{name}{suffix}.", depth + 1)


def _inner(field: _Node) -> Iterator[tuple[_Node, str]]:
    """The objects a field may hold."""
    for kind in _kinds(field):
        if kind.get("properties"):
            yield kind, ""
        for item in _kinds(cast("_Node", kind.get("items", {}))):
            if item.get("properties"):
                yield item, "[]"


def _kinds(schema: _Node) -> list[_Node]:
    return [kind for kind in cast("list[_Node]", schema.get("anyOf", schema.get("oneOf", [schema]))) if kind]


def _takes(schema: _Node) -> str:
    """In words: types, bounds, default."""
    kinds = [_kind(kind) for kind in _kinds(schema) if kind.get("type") != "null"]
    words = " or ".join(dict.fromkeys(kinds)) or "anything"
    default = schema.get("default")
    return words if default in (None, "", [], {}) else f"{words}; default `{_json(default)}`"


def _kind(schema: _Node) -> str:
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{_json(value)}`" for value in schema.get("enum", [schema.get("const")]))
    kind = str(schema.get("type", "anything"))
    if kind == "array":
        kind = f"list of {_takes(schema.get('items', {}))}"
    return kind + "".join(f", {words}" for words in _bounds(schema))


def _bounds(schema: _Node) -> Iterator[str]:
    for low, high, unit in _BOUNDS:
        least, most = (_number(schema[name]) if name in schema else "" for name in (low, high))
        if low.startswith("exclusive") and least:
            yield f"above {least}"
        elif least or most:
            yield (
                f"{least} to {most}" if least and most else f"at least {least}" if least else f"at most {most}"
            ) + unit


_BOUNDS = (
    ("exclusiveMinimum", "", ""), ("minimum", "maximum", ""), ("minLength", "maxLength", " characters"),
    ("minItems", "maxItems", " items"), ("minProperties", "maxProperties", " entries"),
)  # fmt: skip


def _number(value: float) -> str:
    """Powers of two too large to read are written as such; a document may hold whole numbers as floats."""
    whole = int(value)
    if whole != value:
        return f"{value:g}"
    power = abs(whole).bit_length()
    if abs(whole) >= 2**53:
        return f"{'-' if whole < 0 else ''}2^{power if abs(whole) == 2**power - 1 else power - 1}"
    return str(whole)


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _error_rows() -> Iterator[str]:
    for status, code in UNROUTED.items():
        yield f"| (no route) | {status} | `invalid_request_error` | `{code}` | null | no |\n"
    for f in failures():
        yield f"| `{f.name}` | {f.status} | `{f.type}` | `{f.code}` | {f.param} | {f.retry} |\n"
