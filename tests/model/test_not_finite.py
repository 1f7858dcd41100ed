"""A model whose output is not a number ends the request it is about, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from shared.schemas import EndFrame, Frame, Outcome, Request
from tests.model.conftest import Load
from tests.model.tiny_model import VOCAB, write_model
from tests.unit.worker.engine.harness import answers, drain, make_request, start
from worker.backends.interface import Engine
from worker.backends.native import compose_native
from worker.engine.scheduling.config import SchedulerConfig
from worker.model.cpu.blocks import quantize
from worker.model.cpu.build import find_compiler
from worker.model.cpu.choice import KernelConfig
from worker.model.cpu.library import Part
from worker.model.runner import LoadedModel

BROKEN = 7  # the token whose embedding is made infinite
BLOCK_BYTES = 3 * 2 * 2 * 8 * 16 * 8  # of the tiny model in float64
NATIVE_BLOCK_BYTES = 3 * 2 * 2 * 32 * 16 * 2  # of the kernels: heads filled up to 32, float16


def runner_of(loaded: LoadedModel) -> Any:
    return loaded.runner


class TorchModel:
    """What the tests do to a loaded model, by PyTorch."""

    def __init__(self, load: Load, folder: Path, _config: pytest.Config) -> None:
        self.loaded = load(folder, dtype="float64", kv_cache_bytes=7 * BLOCK_BYTES)
        self._model = runner_of(self.loaded)._model

    def set_embedding(self, token_id: int, value: float) -> None:
        self._model._embedding[token_id] = value

    def break_logit(self, token_id: int) -> None:
        head = self._model._head

        def broken(hidden: torch.Tensor) -> torch.Tensor:
            return head(hidden).index_fill(-1, torch.tensor([token_id]), float("nan"))

        self._model._head = broken


class NativeModel:
    """By the CPU kernels: a weight that is not finite is a block whose scale is not."""

    def __init__(self, load: Load, folder: Path, config: pytest.Config) -> None:
        from tests.model.cpu.kernel_cache import kernel_cache

        kernels = KernelConfig(mode="native", library_cache=str(kernel_cache(config)))
        self.loaded = load(folder, kernels=kernels, kv_cache_bytes=7 * NATIVE_BLOCK_BYTES)
        self._weights = load_file(folder / "model.safetensors")

    def set_embedding(self, token_id: int, value: float) -> None:
        self._set(Part.EMBEDDING, "model.embed_tokens.weight", token_id, value)

    def break_logit(self, token_id: int) -> None:
        self._set(Part.HEAD, "lm_head.weight", token_id, float("nan"))

    def _set(self, part: Part, name: str, row: int, value: float) -> None:
        matrix = quantize(self._weights[name].numpy())
        matrix.scales[row] = value
        runner_of(self.loaded)._model.set_weights(-1, part, matrix)


@pytest.fixture(params=[TorchModel, NativeModel])
def model(request: pytest.FixtureRequest, load: Load, tmp_path: Path) -> Any:
    """Six blocks beside the scratch block: what one request frees the next one gets."""
    if request.param is NativeModel and find_compiler() is None:
        pytest.skip("the kernels need a compiler")
    made = request.param(load, write_model(tmp_path, tie_word_embeddings=False), request.config)
    made.set_embedding(BROKEN, float("inf"))
    return made


@pytest.fixture
def engine(model: Any) -> Engine:
    return compose_native(model.loaded, SchedulerConfig(max_num_seqs=4, max_step_tokens=16, max_drafts=3))


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


@pytest.mark.parametrize("params", [*NEIGHBOURS, {"n": 2, "temperature": 1.0}, {"prompt_logprobs": 1, "max_tokens": 0}])
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
    model.set_embedding(BROKEN, 0.0)
    start(engine, request("again", is_broken=True, length=40))
    assert error_code(drain(engine)["again"]) is None


ANYBODY: list[dict[str, Any]] = [*NEIGHBOURS, {"logit_bias": ((9, 5.0),)}]


@pytest.mark.parametrize("token_id", [0, 1, 15, 16, 50, VOCAB - 1])  # panels of the kernels have 16 tokens
def test_one_logit_that_is_no_number_is_noticed_wherever_it_is(engine: Engine, model: Any, token_id: int) -> None:
    """Also where all is well until then, and of whoever draws."""
    model.set_embedding(BROKEN, 0.0)
    for params in ANYBODY:
        start(engine, request("sound", length=5, max_tokens=3, **params))
    assert error_code(drain(engine)["sound"]) is None
    model.break_logit(token_id)
    for index, params in enumerate(ANYBODY):
        start(engine, request(f"broken{index}", length=5, max_tokens=3, **params))
    assert {error_code(frames) for frames in drain(engine).values()} == {"output_not_finite"}
