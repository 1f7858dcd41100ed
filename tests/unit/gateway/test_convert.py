from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.openai.constraints import ConstrainedRequest
from gateway.openai.convert import Converted, Target, chat_request, completion_requests
from gateway.openai.fields import HARMLESS, UNSUPPORTED_IN_CHAT
from gateway.openai.protocol import parse_chat, parse_completion
from shared.errors import ContextLengthExceeded
from shared.schemas import Request
from tests.unit.gateway.fakes import CARD, TOKENIZER, chat_body, completion_body

TARGET = Target("r1", CARD, TOKENIZER, max_choices=8)


def chat(**fields: Any) -> Request:
    return chat_request(parse_chat(json.dumps(chat_body(**fields)).encode()), TARGET).request


def completion(**fields: Any) -> Request:
    return completions(**fields)[0].request


def completions(**fields: Any) -> list[Converted]:
    return completion_requests(parse_completion(json.dumps(completion_body(**fields)).encode()), TARGET)


def test_a_chat_is_rendered_and_tokenized() -> None:
    request = chat()
    assert TOKENIZER.decode(request.prompt_ids, False) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert (request.request_id, request.model) == ("r1", CARD.revision)


def test_max_tokens_defaults_to_what_the_context_has_left() -> None:
    request = chat()
    assert request.params.max_tokens + len(request.prompt_ids) == CARD.context_length


def test_completions_default_to_16_tokens_or_the_room_that_is_left() -> None:
    assert completion().params.max_tokens == 16
    assert completion(prompt=[1] * 505).params.max_tokens == 7


def test_a_pool_smaller_than_the_context_is_the_limit() -> None:
    card = msgspec.structs.replace(CARD, max_request_tokens=40)
    body = parse_completion(json.dumps(completion_body(prompt=[1] * 40)).encode())
    with pytest.raises(ContextLengthExceeded, match="maximum context length is 40 tokens"):
        completion_requests(body, Target("r1", card, TOKENIZER, max_choices=8))


def test_every_honoured_parameter_arrives() -> None:
    params = chat(
        max_completion_tokens=9, temperature=0, top_p=0.5, top_k=40, seed=3, n=2, stop=["a", "b"],
        stop_token_ids=[4], ignore_eos=True, min_p=0.1, presence_penalty=1, frequency_penalty=-0.5,
        repetition_penalty=1.5, logit_bias={"7": -100, "8": 2.5}, min_tokens=3, logprobs=True, top_logprobs=4,
    ).params  # fmt: skip
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k, params.seed) == (9, 0.0, 0.5, 40, 3)
    assert (params.n, params.stop, params.stop_token_ids, params.ignore_eos) == (2, ("a", "b"), (4,), True)
    assert (params.min_p, params.presence_penalty, params.frequency_penalty) == (0.1, 1, -0.5)
    assert (params.repetition_penalty, params.logit_bias) == (1.5, ((7, -100), (8, 2.5)))
    assert (params.min_tokens, params.logprobs) == (3, 4)


def test_logprobs_are_asked_in_each_endpoints_own_way() -> None:
    assert (chat().params.logprobs, chat(logprobs=True).params.logprobs) == (None, 0)
    assert (completion().params.logprobs, completion(logprobs=0).params.logprobs) == (None, 0)
    assert completion(logprobs=5).params.logprobs == 5


def test_null_is_not_given() -> None:
    names = [*UNSUPPORTED_IN_CHAT, *HARMLESS, "max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "n"]
    names += ["stream", "stream_options", "service_tier", "stop_token_ids", "ignore_eos", "max_completion_tokens"]
    names += ["min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "min_tokens"]
    names += ["logprobs", "top_logprobs", *ConstrainedRequest.model_fields]
    given = chat(**dict.fromkeys(names))
    assert msgspec.structs.replace(given.params, seed=0) == msgspec.structs.replace(chat().params, seed=0)


def test_harmless_and_neutral_fields_are_accepted() -> None:
    chat(
        metadata={"a": "b"}, store=True, user="me", presence_penalty=0, logit_bias={}, response_format={"type": "text"}
    )
    completion(best_of=1, echo=False, user="me")


def test_a_seed_is_drawn_when_none_is_given_and_kept_in_range() -> None:
    assert chat().params.seed != chat().params.seed
    assert 0 <= chat(seed=-1).params.seed < 2**63


def test_top_p_zero_leaves_one_token_and_top_k_minus_one_is_off() -> None:
    assert (chat(top_p=0).params.top_k, chat(top_p=0).params.top_p) == (1, 1.0)
    assert chat(top_k=-1).params.top_k == 0


def test_one_prompt_in_a_list_is_that_prompt() -> None:
    assert completion(prompt=["hi"]).prompt_ids == completion(prompt="hi").prompt_ids
    assert completion(prompt=[[1, 2]]).prompt_ids == completion(prompt=[1, 2]).prompt_ids == (1, 2)


def test_one_stop_string_is_a_list_of_one() -> None:
    assert chat(stop="x").params.stop == ("x",)


def test_parts_echoes_and_tool_calls_of_earlier_turns_reach_the_template() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "kind"}]},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm", "refusal": None},
        {"role": "tool", "content": "1", "tool_call_id": "c1"},
    ]
    body = parse_chat(json.dumps(chat_body(messages=messages)).encode())
    assert [message.for_template() for message in body.messages] == [
        {"role": "system", "content": "be kind"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{**call, "function": {"name": "f", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "content": "1", "tool_call_id": "c1"},
    ]
