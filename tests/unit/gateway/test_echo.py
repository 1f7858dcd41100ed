"""A completion that repeats its prompt: the text of the prompt, then the answer, in each choice, plain as streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.openai.convert import Converted, Target, completion_requests
from gateway.openai.identity import new_request_id
from gateway.openai.protocol import parse_completion
from gateway.openai.view import decode_view, encode_view
from shared.errors import InvalidRequest
from shared.schemas import (
    ChoiceEndFrame,
    EndFrame,
    Frame,
    Outcome,
    PromptFrame,
    TokenLogprobs,
    TokensFrame,
    Usage,
)
from shared.text.tokenizer import Tokenizer
from tests.unit.gateway.fakes import CARD, TOKENIZER, completion_body
from tests.unit.shared.tokenizer_samples import blob_of, byte_level

TARGET = Target("r1", CARD, TOKENIZER, max_choices=8)
FINISHED = EndFrame(Outcome.FINISHED, Usage(3, 1))
A, B, C = TOKENIZER.encode("abc")


def converted(**fields: Any) -> Converted:
    return completion_requests(parse_completion(json.dumps(completion_body(**fields)).encode()), TARGET)[0]


def both(asked: Converted, frames: list[Frame]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The choices of every chunk of a stream, and those of a plain answer."""
    request_id = new_request_id()
    stream = asked.view.chunks(request_id, CARD.revision, TOKENIZER.token_bytes)
    payloads = [json.loads(chunk) for frame in frames for chunk in stream.convert(frame) if chunk != b"[DONE]"]
    reply = asked.view.reply(request_id, CARD.revision, TOKENIZER.token_bytes)
    reply.add(frames)
    return [choice for payload in payloads for choice in payload["choices"]], json.loads(reply.body())["choices"]


def test_the_prompt_stands_before_the_text_of_each_choice_plain_as_streamed() -> None:
    ends: list[Frame] = [ChoiceEndFrame(1, "length"), ChoiceEndFrame(0, "stop"), FINISHED]
    frames = [TokensFrame(1, [70], "b"), TokensFrame(0, [69], "a"), *ends]
    chunks, plain = both(converted(prompt="Say: ", echo=True, n=2), frames)
    assert [choice["text"] for choice in plain] == ["Say: a", "Say: b"]
    for index, whole in enumerate(("Say: a", "Say: b")):
        assert "".join(chunk["text"] for chunk in chunks if chunk["index"] == index) == whole


def test_an_answer_without_text_is_the_prompt_alone() -> None:
    chunks, plain = both(converted(prompt="hi", echo=True), [ChoiceEndFrame(0, "stop"), FINISHED])
    assert plain[0]["text"] == "hi" == "".join(chunk["text"] for chunk in chunks)


def test_token_ids_are_told_as_their_text_and_special_ones_by_name() -> None:
    ids = TOKENIZER.encode("<|im_start|>hi")
    assert converted(prompt=ids, echo=True).view.echo == "<|im_start|>hi"


def test_who_does_not_ask_gets_no_prompt() -> None:
    assert converted(echo=False).view.echo == converted().view.echo == ""


def scored(logprob: float) -> TokenLogprobs:
    return TokenLogprobs(logprob, ((C, -0.5),))


def frames_of(*answers: int) -> list[Frame]:
    """The prompt's logprobs in two frames, then a token for each choice."""
    told = [TokensFrame(choice, [token], TOKENIZER.decode([token]), (scored(-9),))
            for choice, token in enumerate(answers)]  # fmt: skip
    ends = [ChoiceEndFrame(choice, "length") for choice in range(len(answers))]
    return [PromptFrame((scored(-1),)), PromptFrame((scored(-2),)), *told, *ends, FINISHED]


def test_logprobs_of_the_prompt_come_first_and_its_first_token_has_none() -> None:
    asked = converted(prompt=[A, B, A], echo=True, logprobs=1)
    assert asked.request.params.prompt_logprobs == asked.request.params.logprobs == 1
    _, (choice,) = both(asked, frames_of(B))
    assert choice["text"] == "abab"
    assert choice["logprobs"] == {
        "tokens": ["a", "b", "a", "b"],
        "token_logprobs": [None, -1, -2, -9],
        "top_logprobs": [None, {"c": -0.5, "b": -1}, {"c": -0.5, "a": -2}, {"c": -0.5, "b": -9}],
        "text_offset": [0, 1, 2, 3],
    }


def test_a_stream_tells_what_a_plain_answer_tells_in_each_choice() -> None:
    chunks, plain = both(converted(prompt="aba", echo=True, logprobs=1, n=2), frames_of(B, C))
    for index, whole in enumerate(plain):
        own = [chunk for chunk in chunks if chunk["index"] == index]
        assert "".join(chunk["text"] for chunk in own) == whole["text"]
        for name, values in whole["logprobs"].items():
            assert [value for chunk in own if chunk["logprobs"] for value in chunk["logprobs"][name]] == values


def test_any_gateway_derives_the_same_chunks_from_the_stored_view() -> None:
    asked = converted(prompt="aba", echo=True, logprobs=0)
    assert decode_view(encode_view(asked.view)) == asked.view


def test_of_no_tokens_the_prompt_is_the_whole_answer() -> None:
    asked = converted(prompt="aba", echo=True, logprobs=0, max_tokens=0)
    assert asked.request.params.max_tokens == 0
    frames: list[Frame] = [frame for frame in frames_of(B) if not isinstance(frame, TokensFrame)]
    chunks, (choice,) = both(asked, frames)
    assert (choice["text"], choice["logprobs"]["token_logprobs"]) == ("aba", [None, -1, -2])
    assert [chunk["text"] for chunk in chunks] == ["aba", ""]


@pytest.mark.parametrize(("text", "offsets"), [("é日b", [0, 1, 1, 1, 2]), ("<|im_end|>b", [0, 10])])
def test_offsets_are_of_characters_of_the_whole_text(text: str, offsets: list[int]) -> None:
    asked = converted(prompt=text, echo=True, logprobs=0)
    count = len(asked.request.prompt_ids)
    frames = [PromptFrame((scored(-1),) * (count - 1)), *frames_of(B)[2:]]
    _, (choice,) = both(asked, frames)
    assert choice["logprobs"]["text_offset"] == [*offsets, len(text)]
    assert choice["text"][len(text) :] == "b"


def test_what_a_tokenizer_puts_before_the_prompt_has_no_place_in_its_text() -> None:
    tokenizer = Tokenizer.from_blob(blob_of(byte_level(), bos_token="<|im_start|>", add_bos_token=True))
    target = Target("r1", CARD, tokenizer, max_choices=8)
    body = parse_completion(json.dumps(completion_body(prompt="ab", echo=True, logprobs=0)).encode())
    _, (choice,) = both(completion_requests(body, target)[0], frames_of(B))
    assert choice["text"] == "abb"
    assert choice["logprobs"]["tokens"] == ["<|im_start|>", "a", "b", "b"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 1, 2]


def test_so_many_logprobs_of_a_prompt_and_no_more() -> None:
    fields: dict[str, Any] = {"prompt": [A] * 400, "echo": True, "logprobs": 19, "max_tokens": 1}
    assert converted(**fields, n=8).view.is_scored  # 64,000
    with pytest.raises(InvalidRequest, match="are 72000 logprobs; at most 65536"):
        converted(**fields | {"prompt": [A] * 450}, n=8)
