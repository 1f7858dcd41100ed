from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.openai.chunks import CHAT_CHUNKS, COMPLETION_CHUNKS, DONE, ChunkShape, ChunkStream
from gateway.openai.identity import Wanted, created_s, identity_of, new_request_id
from gateway.openai.replies import CHAT_REPLY, COMPLETION_REPLY, Reply
from shared.errors import DeadlineExceeded, RequestCancelled, RequestFailed
from shared.schemas import ChoiceEndFrame, EndFrame, ErrorInfo, EventFrame, Frame, Outcome, TokensFrame, Usage
from tests.unit.gateway.fakes import CARD, TAKEN

IDENTITY = identity_of(new_request_id(), CARD)
USAGE = Usage(prompt_tokens=7, completion_tokens=3, cached_tokens=4)
FINISHED = EndFrame(Outcome.FINISHED, USAGE)


def chunks_of(
    frames: list[Frame], shape: ChunkShape = CHAT_CHUNKS, *, n: int = 1, include_usage: bool = False
) -> list[dict[str, Any]]:
    stream = ChunkStream(shape, IDENTITY, Wanted(n, include_usage))
    payloads = [payload for frame in frames for payload in stream.convert(frame)]
    assert payloads[-1] == DONE and DONE not in payloads[:-1]
    return [json.loads(payload) for payload in payloads[:-1]]


def test_order_is_role_content_finish() -> None:
    chunks = chunks_of([TAKEN, TokensFrame(0, [1], "a"), TokensFrame(0, [2], "b"), ChoiceEndFrame(0, "stop"), FINISHED])
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": ""}, {"content": "a"}, {"content": "b"}, {}
    ]  # fmt: skip
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "stop"]


def test_every_chunk_has_the_same_head_and_no_usage_key() -> None:
    chunks = chunks_of([TokensFrame(0, [1], "a"), ChoiceEndFrame(0, "length"), FINISHED])
    heads = [{name: value for name, value in chunk.items() if name != "choices"} for chunk in chunks]
    assert heads[0] == {
        "id": f"chatcmpl-{IDENTITY.request_id}",
        "object": "chat.completion.chunk",
        "created": created_s(IDENTITY.request_id),
        "model": "acme/tiny",
        "system_fingerprint": "fp_0123456789ab",
        "service_tier": "default",
    }
    assert all(head == heads[0] for head in heads)


def test_empty_text_has_no_content_chunk() -> None:
    chunks = chunks_of([TokensFrame(0, [1], ""), TokensFrame(0, [2], ""), ChoiceEndFrame(0, "stop"), FINISHED])
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [{"role": "assistant", "content": ""}, {}]


def test_usage_comes_last_and_only_when_asked() -> None:
    frames: list[Frame] = [TokensFrame(0, [1], "a"), ChoiceEndFrame(0, "stop"), FINISHED]
    *ordinary, last = chunks_of(frames, include_usage=True)
    assert all(chunk["usage"] is None for chunk in ordinary)
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def test_choices_interleave_with_one_role_and_one_finish_each() -> None:
    frames: list[Frame] = [
        TokensFrame(1, [1], "b"), TokensFrame(0, [1], "a"), ChoiceEndFrame(1, "stop"),
        ChoiceEndFrame(1, "stop"), TokensFrame(0, [1], "a"), ChoiceEndFrame(0, "length"), FINISHED,
    ]  # fmt: skip
    choices = [chunk["choices"][0] for chunk in chunks_of(frames, n=2)]
    roles = [choice["index"] for choice in choices if "role" in choice["delta"]]
    finishes = [(choice["index"], choice["finish_reason"]) for choice in choices if choice["finish_reason"]]
    assert roles == [1, 0]
    assert finishes == [(1, "stop"), (0, "length")]


def test_completion_chunks_have_text_and_no_role() -> None:
    chunks = chunks_of([TokensFrame(0, [1], "a"), ChoiceEndFrame(0, "stop"), FINISHED], COMPLETION_CHUNKS)
    assert chunks[0]["id"].startswith("cmpl-") and chunks[0]["object"] == "text_completion"
    assert [chunk["choices"][0] for chunk in chunks] == [
        {"index": 0, "text": "a", "logprobs": None, "finish_reason": None},
        {"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"},
    ]


def test_a_payload_is_one_line_to_every_reader() -> None:
    stream = ChunkStream(CHAT_CHUNKS, IDENTITY, Wanted())
    text = "a\n\r\x0b\x0c\x1c\x85\u2028\u2029é"
    payload = stream.convert(TokensFrame(0, [1], text))[1]
    assert len(payload.decode().splitlines()) == 1
    assert json.loads(payload)["choices"][0]["delta"]["content"] == text


@pytest.mark.parametrize(
    ("end", "kind", "code"),
    [
        (EndFrame(Outcome.CANCELLED), RequestCancelled, "request_cancelled"),
        (EndFrame(Outcome.EXPIRED), DeadlineExceeded, "deadline_exceeded"),
        (EndFrame(Outcome.FAILED, error=ErrorInfo("engine_error", "no")), RequestFailed, "engine_error"),
        (EndFrame(Outcome.DEAD), RequestFailed, "server_error"),
        (FINISHED, RequestFailed, "server_error"),
    ],
)
def test_an_end_without_an_answer_is_a_typed_error(end: EndFrame, kind: type[Exception], code: str) -> None:
    frames: list[Frame] = [TokensFrame(0, [1], "a"), end]
    stream = ChunkStream(CHAT_CHUNKS, IDENTITY, Wanted(include_usage=True))
    payloads = [payload for frame in frames for payload in stream.convert(frame)]
    assert stream.is_done and stream.failure is not None
    assert (type(stream.failure), stream.failure.code) == (kind, code)
    assert DONE not in payloads
    reply = Reply(CHAT_REPLY, IDENTITY, Wanted())
    with pytest.raises(kind):
        reply.add(frames)
        reply.body()


def test_engine_words_are_no_finish_reason() -> None:
    stream = ChunkStream(CHAT_CHUNKS, IDENTITY, Wanted())
    stream.convert(ChoiceEndFrame(0, "abort"))
    assert stream.is_done and stream.failure is not None
    assert stream.convert(FINISHED) == []


def test_a_plain_body_has_every_required_key() -> None:
    reply = Reply(CHAT_REPLY, IDENTITY, Wanted())
    reply.add([TAKEN, ChoiceEndFrame(0, "stop"), FINISHED])
    body = json.loads(reply.body())
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert body["object"] == "chat.completion" and body["usage"]["total_tokens"] == 10


@given(
    texts=st.lists(st.tuples(st.integers(0, 2), st.text()), max_size=30),
    reasons=st.lists(st.sampled_from(["stop", "length"]), min_size=3, max_size=3),
    requeued=st.booleans(),
)
def test_streamed_text_is_the_plain_text(texts: list[tuple[int, str]], reasons: list[str], requeued: bool) -> None:
    frames: list[Frame] = [TokensFrame(choice, [1], text) for choice, text in texts]
    if requeued:
        frames.insert(len(frames) // 2, EventFrame("requeued"))
    frames += [ChoiceEndFrame(index, reason) for index, reason in enumerate(reasons)]
    frames.append(FINISHED)
    for shape, reply_shape in ((CHAT_CHUNKS, CHAT_REPLY), (COMPLETION_CHUNKS, COMPLETION_REPLY)):
        reply = Reply(reply_shape, IDENTITY, Wanted(3))
        reply.add(frames)
        plain = [choice.get("message", {}).get("content") or choice.get("text", "") for choice in reply_choices(reply)]
        streamed = ["", "", ""]
        for chunk in chunks_of(frames, shape, n=3):
            choice = chunk["choices"][0]
            streamed[choice["index"]] += choice.get("delta", choice).get("content") or choice.get("text", "")
        assert streamed == plain


def reply_choices(reply: Reply) -> list[dict[str, Any]]:
    return json.loads(reply.body())["choices"]
