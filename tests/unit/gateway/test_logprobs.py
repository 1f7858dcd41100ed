"""Logprobs in OpenAI's shapes: the same in a stream and in a plain answer, in step with tokens, real bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.openai.identity import new_request_id
from gateway.openai.view import Endpoint, View
from shared.schemas import ChoiceEndFrame, EndFrame, Frame, Outcome, TokenLogprobs, TokensFrame, Usage

PIECES = {1: b"The", 2: b" s", 3: b"\xc3", 4: b"\xa9", 5: b"a", 6: b"END", 9: b"<|end|>"}


def told(token_id: int, logprob: float, *rivals: tuple[int, float], text: str = "", choice: int = 0) -> TokensFrame:
    return TokensFrame(choice, [token_id], text, (TokenLogprobs(logprob, rivals),))


FRAMES: list[Frame] = [
    told(1, -0.5, (1, -0.5), (5, -1.5), text="The"),
    told(3, -1.0, (2, -0.1), (3, -1.0)),
    told(4, -2.0, (4, -2.0), (3, -3.0), text="é"),
    told(5, -0.25, (5, -0.25), (6, -4.0)),
    TokensFrame(0, [9], "a"),
    ChoiceEndFrame(0, "stop"),
    EndFrame(Outcome.FINISHED, Usage(3, 5)),
]


def both(endpoint: Endpoint, frames: list[Frame], *, n: int = 1) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Choices of the chunks of a stream, and those of the plain answer."""
    view = View(endpoint=endpoint, model="m", n=n, logprobs=True)
    request_id = new_request_id()
    chunks = view.chunks(request_id, "m@0", PIECES.__getitem__)
    payloads = [payload for frame in frames for payload in chunks.convert(frame)]
    reply = view.reply(request_id, "m@0", PIECES.__getitem__)
    reply.add(frames)
    return [json.loads(payload)["choices"][0] for payload in payloads[:-1]], json.loads(reply.body())["choices"]


def test_chat_entries_have_text_bytes_and_rivals() -> None:
    _, (choice,) = both("chat", FRAMES)
    first, half, *_ = choice["logprobs"]["content"]
    assert first == {
        "token": "The",
        "logprob": -0.5,
        "bytes": [84, 104, 101],
        "top_logprobs": [
            {"token": "The", "logprob": -0.5, "bytes": [84, 104, 101]},
            {"token": "a", "logprob": -1.5, "bytes": [97]},
        ],
    }
    assert (half["token"], half["bytes"]) == ("bytes:\\xc3", [0xC3])
    assert choice["logprobs"]["refusal"] is None


def test_bytes_of_the_entries_are_the_text_and_a_stop_token_has_none() -> None:
    _, (choice,) = both("chat", FRAMES)
    spelled = b"".join(bytes(entry["bytes"]) for entry in choice["logprobs"]["content"])
    assert spelled.decode() == choice["message"]["content"] == "Theéa"


def test_a_stream_tells_each_token_once_with_the_text_that_follows_it() -> None:
    chunks, (choice,) = both("chat", FRAMES)
    per_chunk = [chunk["logprobs"] and [entry["token"] for entry in chunk["logprobs"]["content"]] for chunk in chunks]
    assert per_chunk == [None, ["The"], ["bytes:\\xc3", "bytes:\\xa9"], ["a"], None]
    streamed = [entry for chunk in chunks if chunk["logprobs"] for entry in chunk["logprobs"]["content"]]
    assert streamed == choice["logprobs"]["content"]


def test_what_a_stop_string_swallowed_is_told_at_the_end() -> None:
    frames: list[Frame] = [told(1, -0.5, text="The"), told(6, -1.0), ChoiceEndFrame(0, "stop"), FRAMES[-1]]
    chunks, (choice,) = both("chat", frames)
    assert chunks[-1]["finish_reason"] == "stop" and chunks[-1]["delta"] == {}
    assert [entry["token"] for entry in chunks[-1]["logprobs"]["content"]] == ["END"]
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["The", "END"]


def test_completions_have_parallel_lists_and_offsets_of_characters() -> None:
    chunks, (choice,) = both("completion", FRAMES)
    assert choice["logprobs"] == {
        "tokens": ["The", "bytes:\\xc3", "bytes:\\xa9", "a"],
        "token_logprobs": [-0.5, -1.0, -2.0, -0.25],
        "top_logprobs": [
            {"The": -0.5, "a": -1.5},
            {" s": -0.1, "bytes:\\xc3": -1.0},
            {"bytes:\\xa9": -2.0, "bytes:\\xc3": -3.0},
            {"a": -0.25, "END": -4.0},
        ],
        "text_offset": [0, 3, 3, 4],
    }
    for name, whole in choice["logprobs"].items():
        assert [item for chunk in chunks if chunk["logprobs"] for item in chunk["logprobs"][name]] == whole


def test_the_chosen_token_is_named_even_when_it_was_not_likely() -> None:
    _, (choice,) = both("completion", [told(5, -9.0, (1, -0.1), text="a"), ChoiceEndFrame(0, "length"), FRAMES[-1]])
    assert choice["logprobs"]["top_logprobs"] == [{"The": -0.1, "a": -9.0}]


def test_each_choice_has_its_own() -> None:
    frames = [told(1, -0.5, text="The", choice=1), told(5, -0.25, text="a")]
    ends: list[Frame] = [ChoiceEndFrame(0, "stop"), ChoiceEndFrame(1, "stop"), FRAMES[-1]]
    _, choices = both("chat", [*frames, *ends], n=2)
    assert [choice["logprobs"]["content"][0]["token"] for choice in choices] == ["a", "The"]


@pytest.mark.parametrize("endpoint", ["chat", "completion"])
def test_not_asked_is_null(endpoint: Endpoint) -> None:
    view = View(endpoint=endpoint, model="m")
    reply = view.reply(new_request_id(), "m@0", PIECES.__getitem__)
    reply.add(FRAMES)
    assert json.loads(reply.body())["choices"][0]["logprobs"] is None
