"""Several prompts in one completion: a request for each, all of them or none, and one answer with one end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.dispatch import Placed
from gateway.http.options import AdmissionOptions, part_key
from gateway.openai.chunks import MergedChunks
from gateway.openai.convert import Converted, Target, completion_requests
from gateway.openai.identity import new_request_id
from gateway.openai.protocol import parse_completion
from gateway.openai.replies import MergedReply
from shared.access.entries import ANONYMOUS, Tenant
from shared.errors import InvalidRequest, Overloaded, RequestCancelled
from shared.schemas import (
    ChoiceEndFrame,
    EndFrame,
    Frame,
    Outcome,
    PromptFrame,
    Request,
    TokenLogprobs,
    TokensFrame,
    Usage,
)
from tests.unit.gateway.fakes import CARD, TOKENIZER, FakeDispatcher, build_app, client_of, completion_body

ID = new_request_id()
A, B, C = TOKENIZER.encode("abc")


def converted(tenant: Tenant = ANONYMOUS, **fields: Any) -> list[Converted]:
    body = parse_completion(json.dumps(completion_body(**fields)).encode())
    return completion_requests(body, Target(ID, CARD, TOKENIZER, max_choices=8, tenant=tenant))


def answered(index: int, *texts: str) -> list[tuple[int, Frame]]:
    """Of prompt `index`: a choice a text, of one token."""
    frames: list[Frame] = [PromptFrame((TokenLogprobs(-1, ((A, -2.0),)),))]
    frames += [TokensFrame(choice, [B], text, (TokenLogprobs(-3, ((A, -4.0),)),)) for choice, text in enumerate(texts)]
    frames += [ChoiceEndFrame(choice, "stop") for choice in range(len(texts))]
    return [(index, frame) for frame in [*frames, EndFrame(Outcome.FINISHED, Usage(2, len(texts), 1))]]


def streamed(asked: list[Converted], frames: list[tuple[int, Frame]]) -> tuple[MergedChunks, list[Any]]:
    chunks = MergedChunks([one.view.chunks(ID, CARD.revision, TOKENIZER.token_bytes) for one in asked])
    payloads = [payload for frame in frames for payload in chunks.convert(frame)]
    return chunks, [payload if payload == b"[DONE]" else json.loads(payload) for payload in payloads]


def test_each_prompt_is_a_request_of_its_own_whose_choices_are_numbered_on() -> None:
    asked = converted(prompt=["ab", "c"], n=2)
    assert [one.request.request_id for one in asked] == [ID, f"{ID}-1"]
    assert [one.request.prompt_ids for one in asked] == [(A, B), (C,)]
    assert [one.view.first_index for one in asked] == [0, 2]


def test_a_stream_of_several_prompts_has_one_end_and_adds_up_what_was_used() -> None:
    asked = converted(prompt=["ab", "ab"], n=2, stream=True, stream_options={"include_usage": True})
    chunks, payloads = streamed(asked, [*answered(1, "c", "d"), *answered(0, "a", "b")])
    *told, usage, done = payloads
    texts = {chunk["choices"][0]["index"]: chunk["choices"][0]["text"] for chunk in told if chunk["choices"][0]["text"]}
    assert (chunks.is_done, texts) == (True, {0: "a", 1: "b", 2: "c", 3: "d"})
    assert {chunk["id"] for chunk in (*told, usage)} == {f"cmpl-{ID}"} and done == b"[DONE]"
    assert (usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"]) == (4, 4)
    assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


def test_usage_in_every_chunk_is_that_of_all_prompts_so_far() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    asked = converted(prompt=["ab", "c"], stream=True, stream_options=options)
    _, payloads = streamed(asked, [*answered(0, "x"), *answered(1, "y")])
    told = [payload["usage"] for payload in payloads[:-2]]
    assert [(usage["prompt_tokens"], usage["completion_tokens"]) for usage in told] == [(3, 1), (3, 1), (3, 2), (3, 2)]


def test_the_failure_of_one_prompt_ends_the_stream_of_all() -> None:
    end = EndFrame(Outcome.CANCELLED)
    chunks, payloads = streamed(converted(prompt=["ab", "c"]), [(1, end), *answered(0, "x")])
    assert (payloads, chunks.is_done, type(chunks.failure)) == ([], True, RequestCancelled)


def test_a_plain_answer_says_what_the_stream_says_with_each_prompt_and_its_logprobs() -> None:
    asked = converted(prompt=[[A, B], [C, B]], echo=True, logprobs=1, return_token_ids=True)
    frames = [*answered(1, "y"), *answered(0, "x")]
    reply = MergedReply([one.view.reply(ID, CARD.revision, TOKENIZER.token_bytes) for one in asked])
    reply.add(frames)
    body = json.loads(reply.body())
    assert reply.is_done and [choice["text"] for choice in body["choices"]] == ["abx", "cby"]
    assert [choice["logprobs"]["token_logprobs"] for choice in body["choices"]] == [[None, -1, -3]] * 2
    assert body["prompt_token_ids"] == [[A, B], [C, B]] and body["usage"]["total_tokens"] == 6
    _, (*payloads, _) = streamed(asked, frames)
    choices = [payload["choices"][0] for payload in payloads]
    for whole in body["choices"]:
        assert "".join(choice["text"] for choice in choices if choice["index"] == whole["index"]) == whole["text"]


@pytest.mark.parametrize("limits", [{"requests_per_min": 2}, {"max_concurrency": 2}, {"tokens_per_min": 20}])
def test_more_at_once_than_a_key_allows_is_refused_with_its_limit(limits: dict[str, Any]) -> None:
    ((name, limit),) = limits.items()
    with pytest.raises(InvalidRequest, match=f"{name} {limit}"):
        converted(Tenant(name="t", **limits), prompt=["a", "b", "c"], max_tokens=6)
    assert len(converted(Tenant(name="t", **limits), prompt=["a", "b"], max_tokens=6)) == 2


def test_the_bound_of_logprobs_is_one_for_all_prompts() -> None:
    with pytest.raises(InvalidRequest, match="65536"):
        converted(prompt=[[A] * 400] * 8, echo=True, logprobs=20)
    assert len(converted(prompt=[[A] * 380] * 8, echo=True, logprobs=20)) == 8


def test_each_prompt_has_an_idempotency_key_of_its_own_where_there_is_one() -> None:
    assert len({part_key("k", index) for index in range(64)}) == 64
    assert (part_key("k", 0), part_key("", 1)) == ("k", "")


class Full(FakeDispatcher):
    """Takes two; the first was there before."""

    async def submit(self, request: Request, options: AdmissionOptions) -> Placed:
        if len(self.requests) == 2:
            raise Overloaded("full", retry_after_s=2)
        placed = await super().submit(request, options)
        return placed if len(self.requests) == 2 else Placed("joined", placed.model)


@pytest.mark.parametrize("stream", [False, True])
async def test_one_that_is_refused_takes_back_those_before_it_but_no_run_that_was_joined(stream: bool) -> None:
    dispatcher = Full()
    async with client_of(build_app(dispatcher)) as client:
        reply = await client.post("/v1/completions", json=completion_body(prompt=["a", "b", "c"], stream=stream))
    assert (reply.status_code, reply.json()["error"]["message"]) == (429, "full")
    assert dispatcher.withdrawn == [dispatcher.requests[1].request_id] and dispatcher.left == ["joined"]


@pytest.mark.parametrize(("headers", "waited"), [({}, 1), ({"idempotency-key": "k"}, 3)])
async def test_detached_prompts_are_waited_for_once_until_they_are_safe(headers: dict[str, str], waited: int) -> None:
    dispatcher = FakeDispatcher()
    async with client_of(build_app(dispatcher)) as client:
        body = completion_body(prompt=["a", "b", "c"])
        await client.post("/v1/completions", json=body, headers=headers | {"x-headrace-detach": "true"})
    assert [options.is_kept_elsewhere for options in dispatcher.options].count(False) == waited
    assert dispatcher.options[-1].is_kept_elsewhere is False
