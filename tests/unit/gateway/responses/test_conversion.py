"""A Responses body: what is taken, what is refused and by which name, and the prompt that is made of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.openai.convert import Target
from gateway.openai.identity import new_request_id
from gateway.openai.responses.convert import ConvertedResponse, num_input_tokens, response_request
from gateway.openai.responses.fields import NO_EFFECT, REFUSED
from gateway.openai.responses.items import kept_items, messages_of
from gateway.openai.responses.protocol import ResponseRequest, parse_prompted, parse_response
from shared.errors import ContextLengthExceeded, InvalidRequest, UnsupportedParameter
from shared.schemas import ConstraintKind
from tests.unit.gateway.fakes import CARD, TOKENIZER

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "integer"}}}}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at":1}'}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


def parsed(**fields: Any) -> ResponseRequest:
    return parse_response(json.dumps({"model": CARD.name, "input": "hi", **fields}).encode())


def converted(before: list[dict[str, Any]] | None = None, **fields: Any) -> ConvertedResponse:
    target = Target(new_request_id(), CARD, TOKENIZER, max_choices=4)
    return response_request(parsed(**fields), before or [], target)


def prompt_of(before: list[dict[str, Any]] | None = None, **fields: Any) -> str:
    return TOKENIZER.decode(list(converted(before, **fields).request.prompt_ids))


def test_a_text_is_a_users_message_after_the_instructions() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert list(converted(instructions="Be brief.").request.prompt_ids) == list(
        TOKENIZER.encode(TOKENIZER.render_chat(messages))
    )


def test_parts_and_messages_without_a_type_are_the_same_as_a_text() -> None:
    part = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}]
    assert prompt_of(input=part) == prompt_of(input=[{"role": "user", "content": "hi"}]) == prompt_of()


def test_a_conversation_before_it_comes_first() -> None:
    first = converted()
    answer = {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "ho"}]}
    both = prompt_of([*first.items, answer], input="and?")
    assert both == prompt_of(input=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"},
                                    {"role": "user", "content": "and?"}])  # fmt: skip


def test_calls_and_their_results_are_a_turn_of_the_assistant_and_of_tools() -> None:
    items = parsed(
        input=[
            {"role": "user", "content": "look"},
            {"type": "reasoning", "summary": []},
            CALL,
            {**CALL, "call_id": "c2"},
            {"type": "function_call_output", "call_id": "c1", "output": "x"},
        ]
    )
    messages = messages_of(None, kept_items(items.input, "r"))
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert [call["id"] for call in messages[1]["tool_calls"]] == ["c1", "c2"]


def test_every_item_is_kept_with_an_id() -> None:
    items = converted(input=[{"role": "user", "content": "a"}, {"id": "mine", **CALL}]).items
    assert items[0]["id"].startswith("msg_") and items[1]["id"] == "mine"


def test_a_schema_holds_the_answer() -> None:
    shape = {"type": "json_schema", "name": "s", "schema": SCHEMA, "strict": True}
    request = converted(text={"format": shape}).request
    assert request.params.constraint is not None and request.params.constraint.kind is ConstraintKind.JSON_SCHEMA


def test_a_forced_call_holds_the_answer_and_is_looked_for() -> None:
    result = converted(tools=[TOOL], tool_choice={"type": "function", "name": "look"})
    assert result.request.params.constraint is not None
    assert result.view.answer.names == ("look",) and result.view.answer.is_named
    assert result.view.echo["tool_choice"] == {"type": "function", "name": "look"}


def test_parameters_reach_the_engine_and_are_told_back() -> None:
    result = converted(max_output_tokens=5, temperature=0.5, top_p=0.5, seed=3, top_logprobs=2, metadata={"a": "b"})
    params = result.request.params
    assert (params.max_tokens, params.temperature, params.top_p, params.seed, params.logprobs) == (5, 0.5, 0.5, 3, 2)
    assert result.view.echo["metadata"] == {"a": "b"} and result.view.echo["max_output_tokens"] == 5


@pytest.mark.parametrize("field", sorted(name for name in REFUSED))
def test_a_refused_field_is_named(field: str) -> None:
    with pytest.raises(UnsupportedParameter) as refusal:
        parsed(**{field: {"id": "x"}})
    assert refusal.value.param == field


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"colour": 1}, "colour"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "web_search_call"}]}, "input[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
        ({"background": True, "store": False}, "background"),
        ({"stream_options": {}}, "stream_options"),
        ({"include": ["everything"]}, "include[0]"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "schema": {"type": 3}}}}, "text.format"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)  # fmt: skip
def test_a_fault_is_told_by_the_name_the_client_knows(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        converted(**fields)
    assert refusal.value.param == param and refusal.value.message.startswith(param)


def test_a_prompt_that_is_too_long_is_the_inputs_fault() -> None:
    with pytest.raises(ContextLengthExceeded) as refusal:
        converted(input="word " * 600)
    assert refusal.value.param == "input" and "maximum context length is 512 tokens" in refusal.value.message


@pytest.mark.parametrize("field", ["user", "reasoning", "text.verbosity"])
def test_strict_refuses_what_would_have_no_effect(field: str) -> None:
    outer, _, inner = field.partition(".")
    body = {"model": CARD.name, "input": "hi", outer: {inner: "low"} if inner else "me"}
    with pytest.raises(UnsupportedParameter, match=NO_EFFECT[field].split(";")[0]):
        parse_response(json.dumps(body).encode(), is_strict=True)


def test_what_counts_tokens_counts_those_of_the_prompt() -> None:
    body = parse_prompted(json.dumps({"model": CARD.name, "input": "hi", "instructions": "Be brief."}).encode())
    target = Target(new_request_id(), CARD, TOKENIZER, max_choices=4)
    assert num_input_tokens(body, [], target) == len(converted(instructions="Be brief.").request.prompt_ids)
