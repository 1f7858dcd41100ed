"""JSON Schema read as its authors mean it: an object has the properties it lists.

By the letter, `properties` without `additionalProperties` lets an answer add any others, and a model that may, does:
the caller gets arguments its function does not take. What is made of a closed schema fits the open one too. Knows
nothing of grammars.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

# Under these a schema is one of several that must hold together: closing one would shut out what another asks for.
_TOGETHER = frozenset(
    {"allOf", "not", "if", "then", "else", "dependentSchemas", "unevaluatedProperties", "$dynamicRef", "$recursiveRef"}
)
_ALTERNATIVES = frozenset({"anyOf", "oneOf", "$ref"})
_OF_OBJECTS = frozenset({"properties", "required", "patternProperties", "additionalProperties", "minProperties"})
_LISTS_OF_SCHEMAS = ("prefixItems", "anyOf", "oneOf", "allOf")
_MAPS_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions")
_SCHEMAS = ("items", "additionalProperties", "contains", "propertyNames")


def closed(schema: Any) -> Any:
    """The schema with `additionalProperties: false` in each object that lists properties and says nothing of others.
    As it is, where parts of it must hold together (`allOf` of several, `properties` beside `anyOf`). Changes nothing
    in place."""
    return schema if any(_is_an_intersection(part) for part in _parts(schema)) else _closed(schema)


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """It and all schemas in it. What stands in `enum`, `const` or `default` is no schema."""
    if not isinstance(schema, dict):
        return
    part = cast("dict[str, Any]", schema)
    yield part
    for inner in _inner(part):
        yield from _parts(inner)


def _inner(schema: dict[str, Any]) -> Iterator[Any]:
    for keyword in _SCHEMAS:
        yield schema.get(keyword)
    for keyword in _LISTS_OF_SCHEMAS:
        value = schema.get(keyword)
        yield from value if isinstance(value, list) else ()
    for keyword in _MAPS_OF_SCHEMAS:
        value = schema.get(keyword)
        yield from value.values() if isinstance(value, dict) else ()


def _is_an_intersection(schema: dict[str, Any]) -> bool:
    keywords = set(schema)
    if keywords & _ALTERNATIVES and keywords & _OF_OBJECTS:
        return True
    together, members = keywords & _TOGETHER, schema.get("allOf")
    is_one_alone = together == {"allOf"} and isinstance(members, list) and len(cast("list[Any]", members)) == 1
    return bool(together) and not (is_one_alone and not keywords & _OF_OBJECTS)


def _closed(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    part = dict(cast("dict[str, Any]", schema))
    for keyword in _SCHEMAS:
        if keyword in part:
            part[keyword] = _closed(part[keyword])
    for keyword in _LISTS_OF_SCHEMAS:
        if isinstance(part.get(keyword), list):
            part[keyword] = [_closed(inner) for inner in part[keyword]]
    for keyword in _MAPS_OF_SCHEMAS:
        if isinstance(part.get(keyword), dict):
            part[keyword] = {name: _closed(inner) for name, inner in part[keyword].items()}
    return part | {"additionalProperties": False} if _lists_all(part) else part


def _lists_all(schema: dict[str, Any]) -> bool:
    """It lists its properties, says nothing of others and needs none."""
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, dict) or {"additionalProperties", "patternProperties", "minProperties"} & set(schema):
        return False
    # A list that is none is the library's to refuse.
    return isinstance(required, list) and all(
        name in properties for name in cast("list[Any]", required) if isinstance(name, str)
    )
