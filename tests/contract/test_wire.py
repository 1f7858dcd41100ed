"""Payloads of every released wire version still decode: an old gateway, a new worker, one queue."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from shared.schemas import (
    WIRE_VERSION,
    Constraint,
    ConstraintKind,
    EndFrame,
    ModelCard,
    Outcome,
    PromptFrame,
    Request,
    SamplingParams,
    TokenLogprobs,
    TokensFrame,
    WorkerInfo,
    decode_frames,
    decode_request,
    encode_frames,
    encode_request,
    prefixes_of,
)  # fmt: skip
from shared.token_stream import decode_messages

V1 = Path(__file__).parent / "wire" / "v1"
REQUEST = Request(
    request_id="01a22d3f5ae3f68a775feb7f74fd0436",
    model="tiny@0123456789ab",
    prompt_ids=(1, 2, 3),
    params=SamplingParams(
        max_tokens=8, seed=7, temperature=0.5, top_p=0.9, top_k=40, n=2, stop=("END",), stop_token_ids=(2,),
        ignore_eos=True, min_p=0.25, presence_penalty=0.5, frequency_penalty=-0.5, repetition_penalty=1.5,
        logit_bias=((5, -100.0),), min_tokens=3, logprobs=2,
        constraint=Constraint(ConstraintKind.CHOICE, '["yes","no"]'),
    ),
    tenant="t",
)  # fmt: skip


def test_a_request_of_version_1() -> None:
    raw = (V1 / "request.json").read_bytes().strip()
    assert decode_request(raw) == REQUEST
    assert encode_request(REQUEST) == raw


def test_visible_tokens_are_a_field_that_other_requests_do_not_have() -> None:
    """A worker that does not know it refuses the body, as it could not write such an answer."""
    params = msgspec.structs.replace(REQUEST.params, visible_token_ids=(4, 9))
    request = msgspec.structs.replace(REQUEST, params=params)
    assert b'"visible_token_ids":[4,9]' in encode_request(request)
    assert decode_request(encode_request(request)) == request
    assert b"visible" not in encode_request(REQUEST)


def test_a_long_body_is_deflated_and_comes_back() -> None:
    long = msgspec.structs.replace(REQUEST, prompt_ids=tuple(range(2000)))
    body = encode_request(long)
    assert not body.startswith(b"{") and len(body) < 5000
    assert decode_request(body) == long


@pytest.mark.parametrize(
    "body",
    [
        b'{"request_id":"r"}',
        b"\x78\x01broken",
        b"[1]",
        msgspec.json.encode(msgspec.structs.replace(REQUEST, version=99)),
    ],
)
def test_a_body_that_is_not_understood_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError, match="this"):
        decode_request(body)


def test_an_unknown_constraint_is_not_ignored() -> None:
    raw = encode_request(REQUEST).replace(b'"top_k":40', b'"top_k":40,"must_rhyme":true')
    with pytest.raises(ValueError, match="must_rhyme"):
        decode_request(raw)


def test_a_journal_of_version_1() -> None:
    raw = (V1 / "journal.txt").read_bytes()
    frames = decode_frames(raw)
    assert encode_frames(frames[:-1]) == raw[: raw.rindex(b'["e","cancelled"')]
    assert isinstance(frames[-1], EndFrame) and frames[-1].outcome is Outcome.CANCELLED
    assert [(p.token_ids, p.text, p.finish_reason) for p in prefixes_of(frames, 2)] == [
        ((504, 253), "The séa", "stop"),
        ((9,), "", "length"),
    ]


def test_logprobs_are_a_trailing_field_that_other_lines_do_not_have() -> None:
    line = b'["t",0,[8,2],".",[[-0.12,[[8,-0.12],[9,-2.5]]]]]\n'
    (frame,) = decode_frames(line)
    assert frame == TokensFrame(0, [8, 2], ".", (TokenLogprobs(-0.12, ((8, -0.12), (9, -2.5))),))
    assert encode_frames([frame, TokensFrame(0, [1], ",null]")]) == line + b'["t",0,[1],",null]"]\n'


def test_logprobs_of_a_prompt_are_a_line_and_a_field_that_others_do_not_have() -> None:
    """A worker that does not know the field refuses the body, as it could not tell them."""
    line = b'["p",[[-3.4,[[8,-0.12]]],[-0.5,[]]]]\n'
    (frame,) = decode_frames(line)
    assert frame == PromptFrame((TokenLogprobs(-3.4, ((8, -0.12),)), TokenLogprobs(-0.5)))
    assert encode_frames([frame]) == line
    assert [prefix.num_scored for prefix in prefixes_of([frame, frame], 2)] == [4, 4]
    params = msgspec.structs.replace(REQUEST.params, prompt_logprobs=1)
    assert b'"prompt_logprobs":1' in encode_request(msgspec.structs.replace(REQUEST, params=params))


def test_half_a_frame_is_no_journal() -> None:
    with pytest.raises(ValueError, match="whole frame"):
        decode_frames((V1 / "journal.txt").read_bytes()[:-1])


def test_a_message_of_version_1() -> None:
    (message,) = decode_messages((V1 / "message.json").read_bytes())
    assert (message.request_id, message.owner, message.offset) == ("01a2", "w-1/1/1764500000000", 61)
    assert message.frames == '["t",0,[504],"The"]\n'


def test_cards_and_workers_of_version_1() -> None:
    card = msgspec.json.decode((V1 / "card.json").read_bytes(), type=ModelCard)
    worker = msgspec.json.decode((V1 / "worker.json").read_bytes(), type=WorkerInfo)
    assert (card.revision, card.max_request_tokens) == ("tiny@0123456789ab", 96)
    assert (worker.worker_id, worker.version) == ("w-1", WIRE_VERSION)
