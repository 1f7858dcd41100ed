"""What is accepted at the door is enforced: instances that fit are taken to their end, others are not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shared.errors import InvalidRequest, UnsupportedParameter
from shared.schemas import Constraint, ConstraintKind
from shared.text.grammar import MAX_CONSTRAINT_CHARS, check_constraint, lark_of, matcher_of, tokenizer_of
from shared.text.tokenizer import Tokenizer
from tests.unit.shared.tokenizer_samples import blob_of, byte_level

BYTES = tokenizer_of([*(bytes([value]) for value in range(256)), b"<end>"], [256], [256])


def schema(value: Any) -> Constraint:
    return Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(value))


def is_taken(constraint: Constraint, text: str) -> bool:
    check_constraint(constraint, "f")
    matcher = matcher_of(constraint, BYTES)
    return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("value", "fitting", "other"),
    [
        ({"type": "integer", "minimum": 3, "maximum": 120}, "57", "121"),
        ({"type": ["integer", "null"]}, "null", '"a"'),
        ({"enum": ["a", 1, None]}, "null", '"b"'),
        ({"const": {"a": None}}, '{"a":null}', '{"a":1}'),
        ({"type": "string", "pattern": "b"}, '"abc"', '"ac"'),
        ({"type": "string", "minLength": 2, "maxLength": 3}, '"éé"', '"é"'),
        ({"type": "string", "format": "date"}, '"2024-01-31"', '"2024-13-01"'),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, "[1,2]", "[1]"),
        ({"type": "array", "prefixItems": [{"type": "integer"}], "items": False}, "[1]", "[1,2]"),
        ({"properties": {"a": {"type": "integer"}}, "required": ["a"], "type": "object"}, '{"a":1}', '{"z":1}'),
        ({"additionalProperties": {"type": "integer"}, "minProperties": 1, "type": "object"}, '{"x":1}', "{}"),
        ({"patternProperties": {"^x_": {"type": "integer"}}, "additionalProperties": False}, '{"x_a":1}', '{"y":1}'),
        ({"allOf": [{"required": ["a"], "type": "object"}, {"required": ["b"]}]}, '{"a":1,"b":2}', '{"a":1}'),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, '"a"', "true"),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}}, "[[],[[]]]", "[1]"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_keyword_that_is_accepted_is_enforced(value: Any, fitting: str, other: str) -> None:
    assert is_taken(schema(value), fitting) and not is_taken(schema(value), other)


OPEN = {"type": "object", "properties": {"a": {"type": "integer"}}}
OTHERS = {"type": "object", "properties": {"b": {"type": "integer"}}}


@pytest.mark.parametrize(
    "value",
    [
        OPEN,
        {"$ref": "#/$defs/o", "$defs": {"o": OPEN}},
        {"anyOf": [OPEN, {"type": "null"}]},
        {"allOf": [OPEN]},
        {"type": "object", "properties": {}},
    ],
    ids=str,
)
def test_an_object_has_the_properties_it_lists_and_no_others(value: Any) -> None:
    assert not is_taken(schema(value), '{"z":1}') and is_taken(schema(value), "{}")


@pytest.mark.parametrize(
    ("value", "fitting"),
    [
        (OPEN | {"additionalProperties": True}, '{"z":1}'),
        (OPEN | {"required": ["z"]}, '{"z":1}'),
        ({"type": "object"}, '{"z":1}'),
        ({"allOf": [OPEN, OTHERS]}, '{"a":1,"b":1}'),
        ({"const": OPEN}, json.dumps(OPEN, separators=(",", ":"))),
    ],
    ids=lambda value: str(value)[:60],
)
def test_an_object_that_needs_other_properties_may_have_them(value: Any, fitting: str) -> None:
    assert is_taken(schema(value), fitting)


@pytest.mark.parametrize("value", [{"properties": {}, "required": True}, {"allOf": 1}, {"properties": 1}])
def test_what_is_no_schema_is_the_clients_mistake(value: Any) -> None:
    with pytest.raises(InvalidRequest):
        check_constraint(schema({"type": "object"} | value), "f")


@pytest.mark.parametrize(
    "keyword",
    ["uniqueItems", "contains", "propertyNames", "dependentRequired", "not", "if", "unevaluatedProperties"],
)
def test_a_keyword_that_is_not_is_named(keyword: str) -> None:
    with pytest.raises(UnsupportedParameter, match=keyword):
        check_constraint(schema({"type": ["array", "object"], keyword: True}), "f")


@pytest.mark.parametrize("value", [{"oneOf": [{"type": "integer"}, {"minimum": 5}]}, {"format": "x", "type": "string"}])
def test_what_can_be_held_only_in_part_is_unsupported(value: Any) -> None:
    with pytest.raises(UnsupportedParameter, match="f: "):
        check_constraint(schema(value), "f")


def test_a_schema_cannot_switch_checks_off() -> None:
    lenient = {"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}}
    with pytest.raises(UnsupportedParameter, match="uniqueItems"):
        check_constraint(schema(lenient), "f")


def test_blanks_make_json_readable_and_no_more() -> None:
    value = schema({"type": "object"})
    assert is_taken(value, '{"a": 1,\n    "b": [1, 2]\n}')
    assert not is_taken(value, '{"a":  1}') and not is_taken(value, '{\n\n"a":1}') and not is_taken(value, ' {"a":1}')


def test_choices_are_taken_letter_by_letter() -> None:
    texts = ['a"b', "c\\d", "two\nlines", "é", "(a|b)", "\u2028"]
    constraint = Constraint(ConstraintKind.CHOICE, json.dumps(texts))
    assert all(is_taken(constraint, text) for text in texts)
    assert not is_taken(constraint, "a") and not is_taken(constraint, "b")


def test_a_grammar_may_recur() -> None:
    constraint = Constraint(ConstraintKind.GRAMMAR, lark_of('root ::= "(" root ")" | "x"', "f"))
    assert is_taken(constraint, "((x))") and not is_taken(constraint, "((x)")


@pytest.mark.parametrize("kind", list(ConstraintKind))
def test_what_is_too_long_is_not_even_read(kind: ConstraintKind) -> None:
    with pytest.raises(InvalidRequest, match="at most 65536"):
        check_constraint(Constraint(kind, "[" * (MAX_CONSTRAINT_CHARS + 1)), "f")


def test_faults_are_told_in_bounds_and_again() -> None:
    broken = Constraint(ConstraintKind.REGEX, "(" * 5000)
    for _ in range(2):
        with pytest.raises(InvalidRequest) as fault:
            check_constraint(broken, "regex")
        assert fault.value.param == "regex" and len(fault.value.message) < 400


def test_token_bytes_are_what_a_text_is_made_of() -> None:
    tokenizer = Tokenizer.from_blob(blob_of(byte_level()))
    text = "the 日本 é two words"
    assert b"".join(tokenizer.token_bytes(token_id) for token_id in tokenizer.encode(text)).decode() == text
    assert all(tokenizer.token_bytes(token_id).startswith(b"<|") for token_id in tokenizer.special_ids)
    assert tokenizer.token_bytes(10**6) == b""


def test_text_without_a_choice_is_written_in_the_models_own_tokens() -> None:
    """Not in single letters, which no model expects; and never as a special token that it names."""
    tokenizer = Tokenizer.from_blob(blob_of(byte_level()))
    pieces = [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.token_count)]
    vocabulary = tokenizer_of(pieces, tokenizer.special_ids, tokenizer.special_ids[:1], tokenizer.encode)
    for text, ids in ((" the", tokenizer.encode(" the")), ("<|end|>", tokenizer.encode("<"))):
        matcher = matcher_of(Constraint(ConstraintKind.CHOICE, json.dumps([text])), vocabulary)
        allowed = matcher.compute_bitmask()
        assert [token_id for token_id in range(len(pieces)) if allowed[token_id // 8] >> token_id % 8 & 1] == ids
