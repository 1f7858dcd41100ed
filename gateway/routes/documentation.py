"""The OpenAPI entry of a body that a route parses itself: the model's schema, with references written out."""

from __future__ import annotations

from typing import Any, cast

from pydantic import BaseModel


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """For `openapi_extra`. The model must not contain itself."""
    schema = model.model_json_schema()
    definitions = cast("dict[str, Any]", schema.pop("$defs", {}))
    content = {"application/json": {"schema": _written_out(schema, definitions)}}
    return {"requestBody": {"required": True, "content": content}}


def _written_out(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_written_out(item, definitions) for item in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    fields = cast("dict[str, Any]", node)
    if "$ref" in fields:
        return _written_out(definitions[str(fields["$ref"]).rpartition("/")[2]], definitions)
    return {name: _written_out(value, definitions) for name, value in fields.items()}
