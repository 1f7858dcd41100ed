"""A model whose output is not a number ends the request it is about, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from shared.schemas import EndFrame, Frame, Outcome, Request
from tests.model.conftest import Load
from tests.model.tiny_model import write_model
from tests.unit.worker.engine.harness import answers, drain, make_request, start
from worker.backends.interface import Engine
from worker.backends.native import compose_native
from worker.engine.scheduling.config import SchedulerConfig

BROKEN = 7  # the token whose embedding is made infinite
BLOCK_BYTES = 3 * 2 * 2 * 8 * 16 * 8  # of the tiny model in float64


@pytest.fixture
def model(load: Load, tmp_path: Path) -> Any:
    """Six blocks beside the scratch block: what one request frees the next one gets."""
    folder = write_model(tmp_path, tie_word_embeddings=False)
    loaded = load(folder, dtype="float64", kv_cache_bytes=7 * BLOCK_BYTES)
    embedding(loaded)[BROKEN] = float("inf")
    return loaded


def embedding(model: Any) -> torch.Tensor:
    return model.runner._model._embedding


@pytest.fixture
def engine(model: Any) -> Engine:
    return compose_native(model, SchedulerConfig(max_num_seqs=4, max_step_tokens=16))


def request(name: str, *, is_broken: bool = False, length: int = 20, **params: Any) -> Request:
    prompt = [10 + (i * i + len(name)) % 80 for i in range(length)]
    if is_broken:
        prompt[length // 2] = BROKEN
    return make_request(name, prompt=prompt, **params)


def error_code(frames: list[Frame]) -> str | None:
    """None when it finished."""
    end = frames[-1]
    assert isinstance(end, EndFrame)
    if end.outcome is Outcome.FINISHED:
        return None
    assert end.outcome is Outcome.FAILED and end.error is not None
    return end.error.code


NEIGHBOURS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 0.8, "top_p": 0.9, "top_k": 5, "logprobs": 3},
]


@pytest.mark.parametrize("params", [*NEIGHBOURS, {"n": 2, "temperature": 1.0}])
def test_a_request_whose_logits_are_not_finite_fails_alone(engine: Engine, params: dict[str, Any]) -> None:
    sound = [request(f"sound{i}", length=9 + i, max_tokens=5, **other) for i, other in enumerate(NEIGHBOURS)]
    alone = []
    for each in sound:
        start(engine, each)
        alone.append(answers(drain(engine)[each.request_id]))
    for each in [sound[0], request("broken", is_broken=True, **params), *sound[1:]]:
        start(engine, each)
    journals = drain(engine)
    assert error_code(journals["broken"]) == "output_not_finite"
    assert [answers(journals[each.request_id]) for each in sound] == alone


def test_blocks_of_what_broke_are_sound_for_the_next_owner(engine: Engine) -> None:
    """Also when it never came to a token: it is aborted in the middle of its prompt."""
    sound = request("sound", length=5, max_tokens=80)
    start(engine, sound)
    alone = answers(drain(engine)["sound"])
    start(engine, request("broken", is_broken=True, length=80))
    for _ in range(4):
        engine.step()
    engine.abort(["broken"])
    start(engine, sound)
    assert answers(drain(engine)["sound"]) == alone


def test_what_broke_is_not_found_in_the_prefix_cache(engine: Engine, model: Any) -> None:
    """The fault may be gone when the same prompt comes again."""
    start(engine, request("first", is_broken=True, length=40))
    assert error_code(drain(engine)["first"]) == "output_not_finite"
    embedding(model)[BROKEN] = 0
    start(engine, request("again", is_broken=True, length=40))
    assert error_code(drain(engine)["again"]) is None
