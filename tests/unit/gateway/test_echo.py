"""A completion that repeats its prompt: the text of the prompt, then the answer, in each choice, plain as streamed."""

from __future__ import annotations

import json
from typing import Any

from gateway.openai.convert import Converted, Target, completion_request
from gateway.openai.identity import new_request_id
from gateway.openai.protocol import parse_completion
from shared.schemas import ChoiceEndFrame, EndFrame, Frame, Outcome, TokensFrame, Usage
from tests.unit.gateway.fakes import CARD, TOKENIZER, completion_body

TARGET = Target("r1", CARD, TOKENIZER, max_choices=8)
FINISHED = EndFrame(Outcome.FINISHED, Usage(3, 1))


def converted(**fields: Any) -> Converted:
    return completion_request(parse_completion(json.dumps(completion_body(**fields)).encode()), TARGET)


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
