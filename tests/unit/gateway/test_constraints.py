"""What a body says its answer must be: every dialect becomes the same constraint."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.openai.constraints import constraint_of
from gateway.openai.protocol import parse_chat, parse_completion
from shared.schemas import Constraint, ConstraintKind
from tests.unit.gateway.fakes import chat_body, completion_body

SCHEMA = {"type": "object", "properties": {"a": {"const": None}, "b": {"enum": [None, 1], "default": None}}}
AS_TEXT = Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(SCHEMA, separators=(",", ":")))


def constraint(**fields: Any) -> Constraint | None:
    return constraint_of(parse_chat(json.dumps(chat_body(**fields)).encode()))


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}},
        {"response_format": {"type": "json_schema", "json_schema": {"description": None, "schema": SCHEMA}}},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": SCHEMA, "regex": None, "json_object": False}},
    ],
)
def test_a_schema_arrives_whole_with_its_nulls(fields: dict[str, Any]) -> None:
    assert constraint(**fields) == AS_TEXT


@pytest.mark.parametrize("path", ["{}", "guided_{}", "structured_outputs"])
@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("regex", "[ab]+", "[ab]+"),
        ("grammar", 'start: "a"', 'start: "a"'),
        ("choice", ["a", "é"], '["a","é"]'),
    ],
)
def test_regex_grammar_and_choice_have_three_spellings(path: str, name: str, value: Any, text: str) -> None:
    fields = {path: {name: value}} if path == "structured_outputs" else {path.format(name): value}
    assert constraint(**fields) == Constraint(ConstraintKind(name), text)


def test_any_object_is_a_schema() -> None:
    assert constraint(response_format={"type": "json_object"}) == constraint(structured_outputs={"json_object": True})


def test_gbnf_becomes_lark() -> None:
    made = constraint(grammar='root ::= "a" | "b"')
    assert made is not None and 'start: "a"' in made.text


def test_nothing_asked_is_no_constraint() -> None:
    body = parse_completion(json.dumps(completion_body(response_format={"type": "text"})).encode())
    assert constraint_of(body) is None and not body.is_constrained
