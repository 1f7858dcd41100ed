"""From a request with tools to its prompt, what its answer is held to, and how the answer is read."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.openai.protocol import parse_chat
from gateway.openai.tools.answer import AnswerFormat
from gateway.openai.tools.plan import Plan, plan_of
from shared.errors import InvalidRequest, UnsupportedParameter
from shared.schemas import ConstraintKind
from shared.text.tokenizer import Tokenizer
from tests.unit.gateway.fakes import CARD, chat_body
from tests.unit.shared.tokenizer_samples import CHAT_TEMPLATE, blob_of, byte_level

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "default": None}}},
    },
}
ADD: dict[str, Any] = {"type": "function", "function": {"name": "add"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
TURNS = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": None, "tool_calls": [CALL, CALL | {"id": "call_2"}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "one"},
    {"role": "tool", "tool_call_id": "call_2", "content": "two"},
]
QWEN = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<tool_call>{% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}{% if message.tool_calls %}"
    "{{ message.tool_calls[0].function.arguments.a }}{% endif %}\n{% endfor %}{{ '</think>' if False }}"
    "{% if enable_thinking is defined and enable_thinking %}<think>\n{% endif %}"
)
MISTRAL = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.id }} {% endfor %}{{ m.tool_call_id }}{% endfor %}"
    "[TOOL_CALLS]{{ tools }}"
)


def planned(template: str = CHAT_TEMPLATE, *, tool_format: str = "auto", **fields: Any) -> Plan:
    raw = byte_level()
    raw.add_special_tokens(["[TOOL_CALLS]"])
    tokenizer = Tokenizer.from_blob(blob_of(raw, chat_template=template))
    body = parse_chat(json.dumps(chat_body(**fields)).encode())
    return plan_of(body, msgspec.structs.replace(CARD, tool_format=tool_format), tokenizer)


def test_a_template_that_takes_no_tools_has_them_offered_in_words() -> None:
    plan = planned(tools=[WEATHER])
    assert plan.prompt.startswith("<|im_start|>system\nYou can call these functions") and "<tool_call>" in plan.prompt
    assert (
        '{"name": "get_weather", "description": "Weather of a city"' in plan.prompt and '"default": null' in plan.prompt
    )
    assert plan.answer == AnswerFormat(family="hermes", names=("get_weather",)) and plan.constraint is None


def test_turns_with_calls_and_results_are_told_in_words_to_it() -> None:
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    results = "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>"
    prompt = planned(messages=[{"role": "system", "content": "Be kind."}, *TURNS], tools=[ADD]).prompt
    assert f"<|im_start|>assistant\n{call}\n{call}<|im_end|>\n<|im_start|>user\n{results}<|im_end|>" in prompt
    assert prompt.startswith("<|im_start|>system\nBe kind.\n\nYou can call") and prompt.count("<|im_start|>system") == 1


def test_a_template_that_takes_tools_is_given_them_as_they_are() -> None:
    plan = planned(QWEN, messages=TURNS, tools=[WEATHER, ADD])
    function = {"name": "get_weather", "description": "Weather of a city"}
    function["parameters"] = WEATHER["function"]["parameters"]
    assert plan.prompt.startswith(json.dumps({"type": "function", "function": function}))
    assert "assistant: 1tool: onetool: two" in plan.prompt
    assert plan.answer == AnswerFormat(family="hermes", names=("get_weather", "add"), reasoning="tagged")


def test_a_choice_of_none_offers_nothing_and_looks_for_nothing() -> None:
    plan = planned(tools=[WEATHER], tool_choice="none")
    assert "get_weather" not in plan.prompt and plan.answer == AnswerFormat()


def test_required_and_named_are_forced() -> None:
    named: dict[str, Any] = {"type": "function", "function": {"name": "add"}}
    required, one = (
        planned(tools=[WEATHER, ADD], tool_choice="required"),
        planned(tools=[WEATHER, ADD], tool_choice=named),
    )
    assert required.constraint and required.constraint.kind is ConstraintKind.GRAMMAR
    assert required.answer.names == ("get_weather", "add") and not required.answer.is_named
    assert one.constraint and "get_weather" not in one.constraint.text
    assert one.answer == AnswerFormat(family="hermes", names=("add",), is_named=True)


def test_allowed_tools_are_all_that_is_offered() -> None:
    allowed = {"mode": "required", "tools": [ADD]}
    plan = planned(tools=[WEATHER, ADD], tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert plan.answer.names == ("add",) and plan.constraint and "get_weather" not in plan.prompt


def test_strict_is_held_though_the_model_chooses() -> None:
    strict = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
    plan = planned(tools=[strict])
    assert plan.constraint and "part*" in plan.constraint.text
    with pytest.raises(UnsupportedParameter, match="strict"):
        planned(MISTRAL, tools=[strict])


def test_a_schema_for_the_answer_stands_beside_calls_and_other_formats_do_not() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer"}}}
    plan = planned(tools=[ADD], response_format=schema)
    assert plan.constraint and "(calls | answer)" in plan.constraint.text
    with pytest.raises(UnsupportedParameter, match="regex"):
        planned(tools=[ADD], regex="a+")
    with pytest.raises(InvalidRequest, match="forces a call"):
        planned(tools=[ADD], tool_choice="required", response_format=schema)


def test_what_is_known_to_write_no_calls_is_refused_them_unless_they_are_forced() -> None:
    with pytest.raises(UnsupportedParameter, match="tool_format"):
        planned(tool_format="none", tools=[ADD])
    assert planned(tool_format="none", tools=[ADD], tool_choice="required").answer.family == "json"


def test_mistrals_ids_are_short_and_its_marker_is_shown() -> None:
    plan = planned(MISTRAL, messages=TURNS, tools=[ADD])
    ids = plan.prompt.partition("[")[0].replace(" ", "")
    assert len(ids) == 36 and ids[:18] == ids[18:] and ids.isalnum()
    assert plan.answer.family == "mistral" and len(plan.special_ids) == 1


def test_reasoning_is_open_when_the_prompt_opened_it() -> None:
    assert planned(QWEN).answer == AnswerFormat(reasoning="tagged")
    assert planned(QWEN, chat_template_kwargs={"enable_thinking": True}).answer == AnswerFormat(reasoning="open")
    assert planned(QWEN, regex="a+").answer == AnswerFormat()


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
    ({"tools": [ADD, ADD]}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "no spaces"}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
     "tools[0].function.parameters"),
    ({"tools": [ADD] * 129}, "tools"),
    ({"tools": [ADD], "tool_choice": "any"}, "tool_choice.type"),
    ({"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"tools": [ADD], "tool_choice": {"type": "function"}}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [ADD], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {str(i): 1 for i in range(40)}}, "chat_template_kwargs"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), FAULTS, ids=lambda value: str(value)[:60])
def test_a_fault_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        planned(**fields)
    assert refused.value.param == param
