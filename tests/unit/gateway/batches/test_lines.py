"""Lines of a batch's file: each fault by its code and field, and answers as OpenAI's files have them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.batches.lines import (
    MAX_FAULTS,
    Checked,
    LineFault,
    answer_line,
    parse_line,
    unanswered_line,
)

CHAT = "/v1/chat/completions"


def raw(**fields: Any) -> bytes:
    line = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"model": "m", "messages": []}}
    return json.dumps({**line, **fields}).encode()


def fault_of(line: bytes, max_bytes: int = 1000) -> tuple[str, str | None]:
    with pytest.raises(LineFault) as caught:
        parse_line(1, line, CHAT, max_bytes)
    return caught.value.code, caught.value.param


def body(**fields: Any) -> bytes:
    return raw(body={"model": "m", **fields})


@pytest.mark.parametrize(
    ("line", "code", "param"),
    [
        (b"{", "invalid_json_line", None),
        (b"[]", "invalid_json_line", None),
        (b'{"custom_id": NaN}', "invalid_json_line", None),
        (raw(custom_id=7), "invalid_custom_id", "custom_id"),
        (raw(custom_id=""), "invalid_custom_id", "custom_id"),
        (raw(custom_id="x" * 513), "invalid_custom_id", "custom_id"),
        (raw(method="GET"), "invalid_method", "method"),
        (raw(url="/v1/completions"), "invalid_url", "url"),
        (raw(body=None), "invalid_body", "body"),
        (raw(headers={}), "unknown_parameter", "headers"),
        (raw(body={}), "invalid_body", "body.model"),
        (body(stream=True), "invalid_body", "body.stream"),
        (body(background=True), "invalid_body", "body.background"),
        (body(service_tier="priority"), "invalid_body", "body.service_tier"),
        (body(user="x" * 1000), "line_too_long", None),
    ],
)
def test_a_fault_names_its_field(line: bytes, code: str, param: str | None) -> None:
    assert fault_of(line) == (code, param)


def test_a_good_line_keeps_its_body() -> None:
    line = parse_line(3, body(stream=False, service_tier="auto", seed=2**60), CHAT, 1000)
    assert (line.number, line.custom_id, line.model) == (3, "a", "m")
    assert json.loads(line.body) == {"model": "m", "stream": False, "service_tier": "auto", "seed": 2**60}


def test_a_lines_key_is_its_own_and_always_the_same() -> None:
    one, other = (parse_line(number, raw(), CHAT, 1000) for number in (1, 2))
    assert one.key_hash("b") == one.key_hash("b")
    assert len({one.key_hash("b"), other.key_hash("b"), one.key_hash("c")}) == 3


def looked_at(*lines: bytes) -> Checked:
    checked = Checked()
    for number, line in enumerate(lines, 1):
        checked.look_at(number, line, CHAT, 1000)
    return checked


def test_a_custom_id_that_comes_twice_is_told_with_both_lines() -> None:
    (fault,) = looked_at(raw(), raw(custom_id="b"), raw()).faults
    assert (fault["code"], fault["param"], fault["line"]) == ("duplicate_custom_id", "custom_id", 3)
    assert "line 1" in fault["message"]


def test_faults_are_bounded() -> None:
    checked = looked_at(*[b"{"] * (MAX_FAULTS + 5))
    assert checked.is_hopeless and len(checked.faults) == MAX_FAULTS


def test_too_many_lines_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.batches.lines.MAX_LINES", 2)
    checked = looked_at(*(raw(custom_id=str(n)) for n in range(3)))
    assert checked.is_hopeless and [fault["code"] for fault in checked.faults] == ["too_many_lines"]


def test_answers_are_lines_of_one_form() -> None:
    line = parse_line(1, raw(), CHAT, 1000)
    answer = json.loads(answer_line("b", line, 200, "r1", b'{"n":1.50}'))
    assert answer["response"] == {"status_code": 200, "request_id": "r1", "body": {"n": 1.5}}
    assert answer["error"] is None and answer["custom_id"] == "a"
    late = json.loads(unanswered_line("b", line, "batch_expired", "too late"))
    assert (late["response"], late["error"]) == (None, {"code": "batch_expired", "message": "too late"})
    assert late["id"] == answer["id"]


def test_a_line_is_as_many_requests_as_it_has_prompts() -> None:
    prompts: list[Any] = ["a", ["a", "b"], [1, 2, 3], [[1], [2], [3]], [], None]
    numbers = [parse_line(1, body(prompt=prompt), CHAT, 1000).num_prompts for prompt in prompts]
    assert numbers == [1, 2, 1, 3, 1, 1]
