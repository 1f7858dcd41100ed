"""What calls are held to: the grammar takes what the family writes, refuses what no schema allows, and is read back."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.openai.tools.definitions import Function
from gateway.openai.tools.families import FAMILIES
from gateway.openai.tools.grammar import held_calls
from shared.errors import UnsupportedParameter
from shared.schemas import Constraint
from shared.text.grammar import matcher_of, tokenizer_of
from tests.unit.gateway.tools.parsing import read_calls

TOKENIZER = tokenizer_of([*(bytes([value]) for value in range(256)), b"<end>"], [256], [256])
CITY: dict[str, Any] = {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False
}  # fmt: skip
FUNCTIONS = [Function(name="get_weather", parameters=CITY, strict=True), Function(name="add", strict=True)]
OSLO = ("call", "get_weather", '{"city": "Oslo"}', "complete")
ADD = ("call", "add", "{}", "complete")
ONE = {
    "hermes": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
    "llama3": '{"name": "get_weather", "parameters": {"city": "Oslo"}}',
    "mistral": '[{"name": "get_weather", "arguments": {"city": "Oslo"}}]',
    "json": '[{"name": "get_weather", "arguments": {"city": "Oslo"}}]',
}
TWO = {
    "hermes": ONE["hermes"] + '\n<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>',
    "llama3": ONE["llama3"] + '; {"name": "add", "parameters": {}}',
    "mistral": ONE["mistral"][:-1] + ', {"name": "add", "arguments": {}}]',
    "json": ONE["json"][:-1] + ', {"name": "add", "arguments": {}}]',
}
SCHEMA = (
    '{"type":"object","properties":{"answer":{"type":"integer"}},"required":["answer"],"additionalProperties":false}'
)


def held(family: str, **options: Any) -> Constraint:
    is_parallel = options.pop("is_parallel", True)
    return held_calls(FAMILIES[family], FUNCTIONS, is_parallel=is_parallel, **options)


def takes(constraint: Constraint, text: str) -> bool:
    """As a whole answer."""
    matcher = matcher_of(constraint, TOKENIZER)
    raw = text.encode()
    return matcher.try_consume_tokens(list(raw)) == len(raw) and matcher.is_accepting()


@pytest.mark.parametrize("family", FAMILIES)
def test_forced_calls_are_held_and_read_back(family: str) -> None:
    forced = held(family)
    assert takes(forced, ONE[family]) and read_calls(ONE[family], family) == [OSLO]
    assert takes(forced, TWO[family]) and read_calls(TWO[family], family) == [OSLO, ADD]
    for wrong in ("Sure!", ONE[family].replace("city", "town"), ONE[family].replace("get_weather", "rm"), ""):
        assert not takes(forced, wrong)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_parallel_calls_there_is_one(family: str) -> None:
    single = held(family, is_parallel=False)
    assert takes(single, ONE[family]) and not takes(single, TWO[family])


@pytest.mark.parametrize("family", ["hermes", "llama3", "json"])
def test_free_text_may_stand_instead_and_a_call_is_held_all_the_same(family: str) -> None:
    free = held(family, otherwise="")
    assert takes(free, "It is 2 < 3.") and takes(free, "") and takes(free, ONE[family]) and takes(free, TWO[family])
    assert not takes(free, ONE[family].replace("city", "town"))


def test_text_may_stand_before_and_after_a_call_in_tags() -> None:
    free = held("hermes", otherwise="")
    assert takes(free, f"Let me see. {ONE['hermes']}\nSo.")
    assert not takes(free, f"Let me see. {ONE['hermes'].replace('city', 'town')}")


@pytest.mark.parametrize("family", ["hermes", "json"])
def test_an_answer_of_a_schema_may_stand_instead(family: str) -> None:
    either = held(family, otherwise=SCHEMA)
    assert takes(either, '{"answer": 5}') and takes(either, ONE[family]) and not takes(either, "text")


def test_reasoning_may_come_first() -> None:
    call = ONE["hermes"]
    assert takes(held("hermes", reasoning="open"), f"hm\n</think>\n\n{call}")
    tagged = held("hermes", reasoning="tagged")
    assert takes(tagged, f"<think>hm</think>{call}") and takes(tagged, call)


def test_a_keyword_that_cannot_be_held_is_refused_where_strict_and_passed_over_else() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    with pytest.raises(UnsupportedParameter, match="uniqueItems") as refused:
        held_calls(FAMILIES["hermes"], [Function(name="f", parameters=schema, strict=True)], is_parallel=True)
    assert refused.value.param == "tools"
    loose = held_calls(FAMILIES["hermes"], [Function(name="f", parameters=schema)], is_parallel=True)
    assert takes(loose, '<tool_call>\n{"name": "f", "arguments": {"a": [1, 1]}}\n</tool_call>')
    assert not takes(loose, '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>')
