"""Every backend as the suite makes it. A new one adds a maker, and a param where fixtures take theirs from."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shared.schemas import TokenLogprobs
from tests.unit.worker.engine.harness import FakeModel
from worker.backends.interface import Engine
from worker.backends.native import compose_native
from worker.backends.simulated import BLOCK_SIZE, SimulatedConfig, build_simulated
from worker.engine.scheduling.config import SchedulerConfig
from worker.model.cpu.build import find_compiler
from worker.model.cpu.machine import available_sets
from worker.model.fake_runner import FakeRunner

BIG = 4096
HAS_KERNELS = importlib.util.find_spec("torch") is not None and find_compiler() is not None
# vLLM has its own environment, and its engine takes seconds to start: `make test-vllm` runs these.
VLLM = pytest.param(
    "vllm",
    marks=[pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")],
)
ENGINES = ["native_fake", "simulated", "vllm_stand_in", VLLM]
ENGINES_AND_KERNELS = [*ENGINES, "native_cpu"] if HAS_KERNELS else ENGINES


@dataclass(frozen=True, kw_only=True)
class Maker:
    """Makes engines of one backend: any number, equal but for what is asked. Of a backend that is not `is_bitwise` an
    earlier engine is over when the next is made, and logits may differ in their last digits."""

    build: Callable[[int, int, int], Engine]
    max_num_seqs: int
    block_size: int = BLOCK_SIZE
    is_bitwise: bool = True
    displaces_at_slots: bool = True

    def __call__(
        self, *, kv_cache_tokens: int = BIG, max_num_seqs: int | None = None, max_step_tokens: int = 64
    ) -> Engine:
        return self.build(kv_cache_tokens, max_num_seqs or self.max_num_seqs, max_step_tokens)

    def tells_alike(self, found: Iterable[TokenLogprobs], expected: Iterable[TokenLogprobs]) -> bool:
        """Whether logprobs are equal, as far as this backend's can be."""
        found, expected = list(found), list(expected)
        if self.is_bitwise:
            return found == expected
        return len(found) == len(expected) and all(map(_is_close, found, expected))


def maker_of(request: pytest.FixtureRequest, *, max_num_seqs: int = 8) -> Maker:
    """Of the fixture's param."""
    if request.param == "vllm":
        from tests.contract.vllm_engine import BLOCK_SIZE_OF_VLLM, make_vllm

        return Maker(
            build=make_vllm,
            max_num_seqs=max_num_seqs,
            block_size=BLOCK_SIZE_OF_VLLM,
            is_bitwise=False,
            displaces_at_slots=False,
        )
    if request.param == "vllm_stand_in":
        return Maker(build=make_vllm_stand_in, max_num_seqs=max_num_seqs, displaces_at_slots=False)
    if request.param == "native_cpu":
        from tests.model.cpu.kernel_cache import kernel_cache

        cache = kernel_cache(request.config)
        return Maker(build=lambda *sizes: make_native_cpu(*sizes, cache=cache), max_num_seqs=max_num_seqs)
    makers = {"native_fake": make_native_fake, "simulated": make_simulated}
    return Maker(build=makers[request.param], max_num_seqs=max_num_seqs)


def make_simulated(kv_cache_tokens: int, max_num_seqs: int, max_step_tokens: int) -> Engine:
    scheduling = SchedulerConfig(max_num_seqs=max_num_seqs, max_step_tokens=max_step_tokens)
    config = SimulatedConfig(kv_cache_tokens=kv_cache_tokens, scheduling=scheduling)
    return build_simulated(config, sleep=lambda _: None)


def make_native_fake(kv_cache_tokens: int, max_num_seqs: int, max_step_tokens: int) -> Engine:
    """The native engine on a fake runner, with the simulated model's tokenizer."""
    simulated = make_simulated(BIG, 1, 1)
    runner = FakeRunner(num_blocks=1 + kv_cache_tokens // BLOCK_SIZE, vocab_size=simulated.card.vocab_size)
    model = FakeModel(runner, simulated.card, simulated.tokenizer_blob)
    return compose_native(model, SchedulerConfig(max_num_seqs=max_num_seqs, max_step_tokens=max_step_tokens))


def make_vllm_stand_in(kv_cache_tokens: int, max_num_seqs: int, max_step_tokens: int) -> Engine:
    """The engine over vLLM on what stands in for vLLM, with the simulated model's tokenizer."""
    from tests.contract.vllm_stand_in import StandIn
    from worker.backends.vllm import compose_vllm

    simulated = make_simulated(BIG, 1, 1)
    core: Any = StandIn(kv_cache_tokens, max_num_seqs, max_step_tokens, simulated.card.vocab_size)
    return compose_vllm(core, simulated.card, simulated.tokenizer_blob)


def make_native_cpu(kv_cache_tokens: int, max_num_seqs: int, max_step_tokens: int, cache: Path) -> Engine:
    """The native engine on the CPU kernels and a tiny random model, with the simulated model's tokenizer."""
    from tests.model.cpu.kernel_cache import open_library, random_runner

    simulated = make_simulated(BIG, 1, 1)
    runner = random_runner(
        open_library(cache, available_sets()[0].name),
        vocab_size=simulated.card.vocab_size,
        num_blocks=1 + kv_cache_tokens // BLOCK_SIZE,
    )
    model = FakeModel(runner, simulated.card, simulated.tokenizer_blob)
    return compose_native(model, SchedulerConfig(max_num_seqs=max_num_seqs, max_step_tokens=max_step_tokens))


def _is_close(one: TokenLogprobs, other: TokenLogprobs) -> bool:
    def values(told: TokenLogprobs) -> Sequence[float]:
        return [told.logprob, *(logprob for _, logprob in told.top)]

    return len(one.top) == len(other.top) and values(one) == pytest.approx(values(other), abs=1e-3)
