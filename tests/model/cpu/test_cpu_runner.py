"""The fast runner computes what PyTorch computes: closely where both round alike, and the words of the real model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.model.conftest import Load
from tests.model.cpu.conftest import SETS
from tests.model.cpu.rounded import WIDE, rounding_runner, write_rounded_model
from tests.model.reference import Reference
from tests.model.stepper import Sequence, Stepper
from tests.model.tiny_model import LLAMA3_SCALING, VOCAB, write_model
from worker.engine.request import NOT_FINITE
from worker.model.cpu.blocks import quantize
from worker.model.cpu.choice import KernelConfig
from worker.model.cpu.library import Part
from worker.model.cpu.runner import CpuRunner

pytestmark = pytest.mark.timeout(300)  # the first of them compiles
Kernels = Callable[..., KernelConfig]
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": WIDE,
    "llama, two key heads of 64, untied, scaled rope": WIDE
    | {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "tie_word_embeddings": False,
        "rope_scaling": LLAMA3_SCALING,
    },
    "qwen2": WIDE | {"architectures": ["Qwen2ForCausalLM"]},
    "qwen3": WIDE | {"architectures": ["Qwen3ForCausalLM"]},
}


def prompts(seed: int, lengths: list[int]) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, VOCAB, length).tolist() for length in lengths]


def last_logits(runner: Any, ids: list[list[int]]) -> torch.Tensor:
    """Of one step that prefills all of them."""
    return runner.logits(Stepper(runner).batch([(Sequence(list(prompt)), len(prompt)) for prompt in ids]))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("instructions", SETS)
def test_logits_are_those_of_pytorch(
    load: Load, kernels: Kernels, tmp_path: Path, name: str, instructions: str
) -> None:
    folder = write_rounded_model(tmp_path, **FAMILIES[name])
    ids = prompts(1, [1, 2, 16, 17, 40, 300])
    config = kernels(kv_cache_type="float32", instructions=instructions)
    expected = last_logits(load(folder, kv_cache_bytes=8 << 20).runner, ids)
    made = last_logits(load(folder, kernels=config, kv_cache_bytes=8 << 20).runner, ids)
    assert (made - expected).abs().max() < 5e-3 * expected.std()


@pytest.mark.parametrize("instructions", SETS)
def test_eight_bits_round_as_they_say(load: Load, kernels: Kernels, tmp_path: Path, instructions: str) -> None:
    """To fp32's own precision, until a value halfway between two integers is rounded up by one and down by the other:
    that happens sooner or later, and is seen."""
    folder = write_rounded_model(tmp_path, **WIDE)
    ids = prompts(1, [1, 2, 3, 5, 9, 16, 17, 40, 300])
    expected = last_logits(rounding_runner(folder), ids)
    config = kernels(kv_cache_type="float32", activations="int8", instructions=instructions)
    made = last_logits(load(folder, kernels=config, kv_cache_bytes=8 << 20).runner, ids)
    differences = (made - expected).abs().amax(-1) / expected.std()
    assert (differences < 1e-5).sum() >= 4 and differences.max() < 0.3


@pytest.mark.parametrize("changes", [{}, {"num_key_value_heads": 1, "head_dim": 16}], ids=["heads of 8", "heads of 16"])
def test_widths_that_are_no_whole_blocks_are_filled_up(
    load: Load, kernels: Kernels, tmp_path: Path, changes: dict[str, Any]
) -> None:
    folder = write_model(tmp_path, **changes)
    ids = prompts(2, [5, 33, 100])
    expected = torch.stack([Reference(folder, torch.float64).logits(prompt)[-1] for prompt in ids])
    made = last_logits(load(folder, kernels=kernels()).runner, ids)
    assert (made - expected).abs().mean() < 0.1 * expected.std()  # the weights are rounded to eight bits


def test_sixteen_bits_of_kv_cache_change_little(load: Load, kernels: Kernels, tmp_path: Path) -> None:
    folder = write_rounded_model(tmp_path, **WIDE)
    ids = prompts(3, [40, 290])
    runners = (load(folder, kernels=kernels(kv_cache_type=kind)).runner for kind in ("auto", "float32"))
    half, whole = (last_logits(runner, ids) for runner in runners)
    assert not torch.equal(half, whole)
    assert (half - whole).abs().max() < 0.05 * whole.std()


def test_greedy_tokens_are_the_largest_logits_and_of_equals_the_first(
    load: Load, kernels: Kernels, tmp_path: Path
) -> None:
    runner: Any = load(write_model(tmp_path), kernels=kernels(), threads=2).runner
    ids = prompts(4, [3, 20, 64])
    batch = Stepper(runner).batch([(Sequence(list(prompt)), len(prompt)) for prompt in ids])
    assert runner.execute(batch).token_ids.tolist() == runner.logits(batch).argmax(-1).tolist()


def test_sampled_rows_take_the_same_draws_as_with_pytorch(load: Load, kernels: Kernels, tmp_path: Path) -> None:
    """A uniform distribution is drawn from alike, however the logits were computed."""
    folder = write_model(tmp_path, tie_word_embeddings=False)
    made = []
    for config in (None, kernels()):
        sequences = [Sequence([5, 9, 3], max_new=12, temperature=1e6 if i else 0.0, seed=i) for i in range(4)]
        Stepper(load(folder, kernels=config).runner).run(sequences, max_chunk=8)
        made.append([sequence.made for sequence in sequences[1:]])
    assert made[0] == made[1]


def test_choices_may_share_a_sequence(load: Load, kernels: Kernels, tmp_path: Path) -> None:
    runner = load(write_model(tmp_path), kernels=kernels()).runner
    batch = Stepper(runner).batch([(Sequence(ids), len(ids)) for ids in prompts(7, [5, 9])])
    once = runner.execute(batch).token_ids
    batch.sample_rows = batch.sample_rows[[0, 0, 0, 1]]
    assert runner.execute(batch).token_ids.tolist() == [once[0], once[0], once[0], once[1]]


def test_steps_may_make_no_token_and_have_no_rows(load: Load, kernels: Kernels, tmp_path: Path) -> None:
    runner = load(write_model(tmp_path), kernels=kernels()).runner
    stepper = Stepper(runner)
    batch = stepper.batch([(Sequence(ids), 4) for ids in prompts(8, [9, 12])])
    assert runner.execute(batch).token_ids.tolist() == []
    for name in ("token_ids", "positions", "slot_mapping", "seq_lens", "sample_rows"):
        setattr(batch, name, np.empty(0, np.int64))
    assert runner.execute(batch).token_ids.tolist() == []


@pytest.mark.parametrize("instructions", SETS)
@pytest.mark.parametrize("kind", ["float16", "float32"])
def test_what_is_not_finite_is_told_and_stays_with_its_sequence(
    load: Load, kernels: Kernels, tmp_path: Path, kind: str, instructions: str
) -> None:
    """Token 7's embedding is no number: every later token of its sequence is none either, in the step or in a later
    one. Who gets its blocks next notices nothing."""
    config = kernels(kv_cache_type=kind, instructions=instructions)
    runner: Any = load(write_model(tmp_path, tie_word_embeddings=False), kernels=config).runner
    embedding = quantize(np.random.default_rng(0).standard_normal((VOCAB, 32)).astype(np.float32))
    embedding.scales[7] = np.nan
    runner._model.set_weights(-1, Part.EMBEDDING, embedding)
    clean = [token for token in prompts(9, [21])[0] if token != 7]
    expected = last_logits(runner, [clean])
    stepper, broken = Stepper(runner), Sequence([1, 2, 7, *[3] * 250])
    other = Sequence(list(clean), max_new=1)
    stepper.step([(other, len(clean)), (broken, 200)])
    stepper.step([(broken, 53), (other, 1)])
    assert (other.made[0], broken.made) == (int(expected.argmax()), [NOT_FINITE])
    Stepper(runner).step([(Sequence([7] * 256), 256)])  # the blocks of `clean` too: each Stepper hands them out alike
    assert expected.isfinite().all() and torch.equal(last_logits(runner, [clean]), expected)


@pytest.mark.parametrize(
    ("field", "value"), [("token_ids", VOCAB), ("positions", -1), ("slot_mapping", 1 << 40), ("block_tables", 1 << 40)]
)
def test_an_index_out_of_bounds_is_refused(
    load: Load, kernels: Kernels, tmp_path: Path, field: str, value: int
) -> None:
    runner = load(write_model(tmp_path), kernels=kernels()).runner
    batch = Stepper(runner).batch([(Sequence([1, 2, 3]), 3)])
    getattr(batch, field).flat[0] = value
    with pytest.raises(ValueError, match="out of bounds"):
        runner.execute(batch)


def test_the_pool_is_as_large_as_its_memory(load: Load, kernels: Kernels, tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    block_bytes = 3 * 2 * 2 * 32 * 16  # layers, K and V, heads, width filled up, tokens; times two or four bytes
    for kind, size in (("float16", 2), ("float32", 4)):
        runner = load(folder, kernels=kernels(kv_cache_type=kind), kv_cache_bytes=1 << 20).runner
        assert isinstance(runner, CpuRunner)
        assert runner.num_blocks == (1 << 20) // (block_bytes * size)
