"""Logprobs of a prompt through every backend: told once each, whatever batch, cache, chunks and cuts do."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shared.schemas import Frame, Prefix, PromptFrame, TokenLogprobs
from tests.contract.engines import ENGINES_AND_KERNELS, Maker, maker_of
from tests.contract.test_engines import some_requests
from tests.unit.worker.engine.harness import answer, drain, make_request, start


@pytest.fixture(params=ENGINES_AND_KERNELS)
def make(request: pytest.FixtureRequest) -> Maker:
    return maker_of(request)


def scores(frames: Sequence[Frame]) -> list[TokenLogprobs]:
    return [told for frame in frames if isinstance(frame, PromptFrame) for told in frame.logprobs]


def test_logprobs_of_a_prompt_are_told_once_whatever_the_batch_the_cache_and_the_cut(
    make: Maker,
) -> None:
    requests = some_requests(4, n=2, prompt_logprobs=2, max_tokens=6)
    engines = make(), make(kv_cache_tokens=6 * make.block_size, max_step_tokens=7)
    for request in requests:
        for engine in engines:
            start(engine, request)
        start(engines[0], make_request(f"same {request.request_id}", prompt=request.prompt_ids))
    whole, crowded = (drain(engine) for engine in engines)
    for request in requests:
        name = request.request_id
        assert len(scores(whole[name])) == len(request.prompt_ids) - 1
        assert make.tells_alike(scores(whole[name]), scores(crowded[name]))
        for cut in range(4):
            start(engines[1], request, crowded[name][:cut])
            resumed = [*crowded[name][:cut], *drain(engines[1])[name]]
            assert make.tells_alike(scores(resumed), scores(whole[name]))


def test_no_tokens_are_made_where_none_are_asked(make: Maker) -> None:
    engine = make()
    start(engine, make_request("scored", max_tokens=0, prompt_logprobs=0))
    start(engine, make_request("plain", max_tokens=0))
    journals = drain(engine)
    assert answer(journals["scored"]) == Prefix((), "", "length", 4)
    assert answer(journals["plain"]) == Prefix((), "", "length")
