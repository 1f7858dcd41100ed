"""Every mistake of a client gets a 4xx in OpenAI's error shape, with the field named, and is never queued."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.gateway.fakes import CARD, FakeDispatcher, build_app, chat_body, client_of, completion_body

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
USER = {"role": "user", "content": "hi"}
IMAGE = {"type": "image_url", "image_url": {"url": "x"}}


def json_schema(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


CHAT_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"model": 5}, "model"),
    ({"model": ""}, "model"),
    ({"model": None}, "model"),
    ({"model": "nope"}, "model"),
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [None]}, "messages[0]"),
    ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": [{"content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role"),
    ({"messages": [USER, {"role": "user"}]}, "messages[1].content"),
    ({"messages": [USER, {"role": "user", "content": None}]}, "messages[1].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "odd"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{**USER, "colour": "red"}]}, "messages[0].colour"),
    ({"messages": [{"role": "user", "content": "x" * 600}]}, "messages"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"max_tokens": 513}, "messages"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 1.0}, "top_k"),
    ({"seed": 2**64}, "seed"),
    ({"seed": "1"}, "seed"),
    ({"stop": 5}, "stop"),
    ({"stop": [""]}, "stop[0]"),
    ({"stop": [None]}, "stop[0]"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop_token_ids": [1, "2"]}, "stop_token_ids[1]"),
    ({"stop_token_ids": [265]}, "stop_token_ids"),
    ({"ignore_eos": 1}, "ignore_eos"),
    ({"n": 0}, "n"),
    ({"n": 5}, "n"),
    ({"stream": "true"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"stream": True, "stream_options": {"odd": 1}}, "stream_options.odd"),
    ({"service_tier": "batch"}, "service_tier"),
    ({"tools": []}, "tools"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"logprobs": 1}, "logprobs"),
    ({"top_logprobs": "5"}, "top_logprobs"),
    ({"top_logprobs": 5}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ({"logit_bias": {"a": 5}}, "logit_bias.a.[key]"),
    ({"logit_bias": {"-1": 5}}, "logit_bias.-1.[key]"),
    ({"logit_bias": {"1": 100.5}}, "logit_bias.1"),
    ({"logit_bias": {"1": "5"}}, "logit_bias.1"),
    ({"logit_bias": {"265": 5}}, "logit_bias"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"presence_penalty": "0"}, "presence_penalty"),
    ({"frequency_penalty": False}, "frequency_penalty"),
    ({"frequency_penalty": -2.5}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": 10.5}, "repetition_penalty"),
    ({"min_p": 1.1}, "min_p"),
    ({"min_p": -0.1}, "min_p"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    ({"chat_template": "{{ 1 }}"}, "chat_template"),
    ({"response_format": "json_object"}, "response_format"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema.schema"),
    ({"response_format": {"type": "json_object", "json_schema": {"schema": {}}}}, "response_format"),
    ({"response_format": json_schema({"type": "strin"})}, "response_format"),
    ({"response_format": json_schema({"$ref": "https://example.com/s.json"})}, "response_format"),
    ({"response_format": json_schema({"properties": {str(i): {} for i in range(401)}})}, "response_format"),
    ({"regex": "(a"}, "regex"),
    ({"regex": "(?=a)b"}, "regex"),
    ({"regex": ""}, "regex"),
    ({"regex": 5}, "regex"),
    ({"grammar": "x"}, "grammar"),
    ({"grammar": "root ::= missing"}, "grammar"),
    ({"grammar": "root ::= [a-z]" + " [a-z]" * 2000}, "grammar"),
    ({"grammar": "start: missing"}, "grammar"),
    ({"grammar": "start: <|im_start|>"}, "grammar"),
    ({"choice": []}, "choice"),
    ({"choice": [""]}, "choice[0]"),
    ({"choice": "yes"}, "choice"),
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_json": "[]"}, "guided_json"),
    ({"guided_regex": "["}, "guided_regex"),
    ({"guided_choice": ["a"], "choice": ["b"]}, "guided_choice"),
    ({"structured_outputs": {"regex": "a", "json_object": True}}, "structured_outputs.regex"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
    ({"response_format": {"type": "json_object"}, "regex": "a"}, "regex"),
    ({"colour": "red"}, "colour"),
]

TEXT_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": ["a", [1]]}, "prompt"),
    ({"prompt": [[1], 2]}, "prompt"),
    ({"prompt": [[1], [True]]}, "prompt"),
    ({"prompt": ["a"] * 65}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt[1]"),
    ({"prompt": [[], [1]]}, "prompt[0]"),
    ({"prompt": [[1], [265]]}, "prompt[1]"),
    ({"prompt": [[1], [1] * 600]}, "prompt[1]"),
    ({"prompt": [1, True]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [265]}, "prompt"),
    ({"prompt": [1] * 600}, "prompt"),
    ({"echo": "yes"}, "echo"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"echo": True, "max_tokens": -1}, "max_tokens"),
    ({"suffix": "x"}, "suffix"),
    ({"best_of": 2}, "best_of"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"top_logprobs": 1}, "top_logprobs"),
    ({"response_format": json_schema({"type": "array", "uniqueItems": True})}, "response_format"),
    ({"messages": [USER]}, "messages"),
    ({"max_completion_tokens": 5}, "max_completion_tokens"),
]

RAW: list[tuple[bytes, int, str]] = [
    (b"", 400, "not valid JSON"),
    (b"{", 400, "not valid JSON"),
    (b"[]", 400, "JSON object"),
    (b'"text"', 400, "JSON object"),
    (b"null", 400, "JSON object"),
    (b'{"model": "\xff\xfe"}', 400, "UTF-8"),
    (b'{"temperature": NaN}', 400, "not valid JSON"),
    (b'{"temperature": 1e999}', 400, "not valid JSON"),
    (b'{"model": "\\ud800"}', 400, "not valid JSON"),
    (b'{"metadata": ' + b"[" * 65 + b"]" * 65 + b"}", 400, "64 levels"),
    (b'{"metadata": ' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}", 413, "20000 bytes"),
    (b"[" * 9000 + b"]" * 9000, 400, "not valid JSON"),
    (b'{"model": "' + b"x" * 20_000 + b'"}', 413, "20000 bytes"),
]


async def refusal(path: str, *, status: int = 400, **request: Any) -> dict[str, Any]:
    dispatcher = FakeDispatcher()
    async with client_of(build_app(dispatcher)) as client:
        response = await client.post(path, **request)
    assert response.status_code == status, response.text
    assert response.headers["x-request-id"]
    assert not dispatcher.requests
    body = response.json()
    error = body["error"]
    assert list(body) == ["error"] and set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert isinstance(error["message"], str) and isinstance(error["code"], str)
    assert len(error["message"]) < 4000
    return error


@pytest.mark.parametrize(("fields", "param"), CHAT_FIELDS, ids=lambda value: str(value)[:40])
async def test_chat_field(fields: dict[str, Any], param: str) -> None:
    error = await refusal(CHAT, status=404 if fields == {"model": "nope"} else 400, json=chat_body(**fields))
    assert error["param"] == param


@pytest.mark.parametrize(("fields", "param"), TEXT_FIELDS, ids=lambda value: str(value)[:40])
async def test_completion_field(fields: dict[str, Any], param: str) -> None:
    error = await refusal(TEXT, json=completion_body(**fields))
    assert error["param"] == param


@pytest.mark.parametrize(("raw", "status", "words"), RAW, ids=lambda value: str(value)[:40])
async def test_raw_body(raw: bytes, status: int, words: str) -> None:
    error = await refusal(CHAT, status=status, content=raw, headers={"content-type": "application/json"})
    assert words in error["message"]


async def test_a_chunked_body_is_counted() -> None:
    async def chunks() -> Any:
        for _ in range(30):
            yield b" " * 1000

    headers = {"content-type": "application/json"}
    error = await refusal(CHAT, status=413, content=chunks(), headers=headers)
    assert error["code"] == "request_too_large"


@pytest.mark.parametrize(
    "headers",
    [{"content-type": "text/plain"}, {}, {"content-type": "application/json", "content-encoding": "gzip"}],
)
async def test_a_body_of_another_kind_is_415(headers: dict[str, str]) -> None:
    error = await refusal(CHAT, status=415, content=b"{}", headers=headers)
    assert error["code"] == "unsupported_media_type" and error["param"] in ("content-type", "content-encoding")


async def test_many_faults_are_told_within_bounds() -> None:
    fields = {f"{'unknown' * 100}{index}": index for index in range(20)}
    error = await refusal(CHAT, json=chat_body(**fields))
    assert len(error["message"]) < 2500 and "10 more" in error["message"]
    assert error["code"] == "unknown_parameter" and len(error["param"]) <= 100


async def test_limits_stand_in_the_message() -> None:
    assert "2" in (await refusal(CHAT, json=chat_body(temperature=3)))["message"]
    assert "at most 4" in (await refusal(CHAT, json=chat_body(n=5)))["message"]


@pytest.mark.parametrize("keyword", ["uniqueItems", "not", "if", "contains", "propertyNames", "dependentRequired"])
async def test_a_keyword_an_answer_cannot_be_held_to_is_named(keyword: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": ["array", "object"], keyword: True}}}
    error = await refusal(CHAT, json=chat_body(response_format=json_schema(schema)))
    assert (error["code"], error["param"]) == ("unsupported_parameter", "response_format")
    assert keyword in error["message"]


async def test_a_long_prompt_is_told_in_the_words_clients_look_for() -> None:
    for path, body in ((CHAT, chat_body(max_tokens=600)), (TEXT, completion_body(max_tokens=600))):
        error = await refusal(path, json=body)
        assert error["code"] == "context_length_exceeded"
        assert f"This model's maximum context length is {CARD.context_length} tokens" in error["message"]
        assert "Please reduce the length of the messages" in error["message"]
        assert "prompt is too long" in error["message"]


async def test_a_bad_deadline_header_is_named() -> None:
    for value in ("soon", "0", "-5", "1.5", "9" * 30):
        error = await refusal(CHAT, json=chat_body(), headers={"X-Headrace-Deadline-Ms": value})
        assert error["param"] == "x-headrace-deadline-ms"
