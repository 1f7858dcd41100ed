"""The OpenAPI entry of a body that a route parses itself: the model's schema, with references written out.

The fields beside the model's, and why, go with it as `x-headrace-fields`; docs/api.md is made from that
(gateway/reference). As `null` means "not given" wherever it is a field's value, so says the schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pydantic import BaseModel

# Below these a JSON schema is a value, not a part of ours.
_Node = dict[str, Any]


def body_schema(
    model: type[BaseModel],
    *,
    no_effect: Mapping[str, str] | None = None,
    refused: Mapping[str, tuple[Any, ...]] | None = None,
    media_type: str = "application/json",
    done: str = "honoured",
) -> _Node:
    """For `openapi_extra`. `no_effect`: accepted fields, and why they have none. `refused`: fields not supported, each
    with the values that ask for nothing. `done`: what is done with all others. The model must not contain itself."""
    schema = model.model_json_schema()
    definitions = cast("_Node", schema.pop("$defs", {}))
    written = cast("_Node", _written_out(schema, definitions))
    properties = cast("_Node", written.setdefault("properties", {}))
    for name, why in (no_effect or {}).items():
        if "." in name:  # a part of an honoured field
            continue
        properties[name] = {"description": f"Has no effect: {why}."}
    for name, neutral in (refused or {}).items():
        properties[name] = {"description": "Not supported.", "enum": [*neutral, None]}
    return {
        "requestBody": {"required": True, "content": {media_type: {"schema": written}}},
        "x-headrace-fields": {
            "done": done,
            "no_effect": dict(no_effect or {}),
            "refused": {k: list(v) for k, v in (refused or {}).items()},
        },
    }


def _written_out(node: Any, definitions: _Node) -> Any:
    if isinstance(node, list):
        return [_written_out(item, definitions) for item in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    fields = cast("_Node", node)
    if "$ref" in fields:
        return _written_out(definitions[str(fields["$ref"]).rpartition("/")[2]], definitions)
    written = {name: _written_out(value, definitions) for name, value in fields.items()}
    required = written.get("required", [])
    if isinstance(properties := written.get("properties"), dict) and written.get("type") == "object":
        for name, schema in cast("_Node", properties).items():
            if name not in required:
                properties[name] = _or_null(cast("_Node", schema))
    return written


def _or_null(schema: _Node) -> _Node:
    kinds = cast("list[_Node]", schema.get("anyOf", []))
    if not schema.keys() - {"title", "description", "default"} or {"type": "null"} in kinds:
        return schema
    told = {name: schema[name] for name in ("title", "description", "default") if name in schema}
    rest = {name: value for name, value in schema.items() if name not in told}
    return {**told, "anyOf": [*(kinds if set(rest) == {"anyOf"} else [rest]), {"type": "null"}]}
