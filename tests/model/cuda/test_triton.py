"""The Triton kernels in Triton's interpreter, against PyTorch: what they compute, and what enters a row's bits.

The interpreter has no bfloat16 products; that they compile for GPUs is test_compiled.py's matter.
"""

from __future__ import annotations

import contextlib
import functools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.model.cuda.parts import (
    CONTEXT,
    attention_of,
    checkpoint_of,
    expected_logits,
    greedy,
    prompts,
    runner_of,
)
from tests.model.stepper import Sequence, Stepper
from worker.model.cpu.choice import Placement
from worker.model.cuda import assembly
from worker.model.cuda.attention import BlockPlan, Kernels
from worker.model.cuda.choice import CudaOptions
from worker.model.cuda.graphs import RerunRecorder
from worker.model.cuda.runner import CudaRunner
from worker.model.families.model_config import ModelConfig

pytestmark = [pytest.mark.usefixtures("triton"), pytest.mark.timeout(300)]
GENERATOR = torch.Generator().manual_seed(1)


def triton_kernels(config: ModelConfig, pool: torch.Tensor, num_processors: int = 1) -> Kernels:
    from worker.model.cuda.triton_kernels import TritonKernels

    return TritonKernels(config, pool, context_length=CONTEXT, max_rows=16, num_processors=num_processors)


def logits_of(runner: CudaRunner[BlockPlan], lengths: list[int]) -> torch.Tensor:
    """Of prompts in two chunks and a last token: [prompts, vocab]. The pool held nothing finite before."""
    for layer in attention_of(runner)._layers:
        layer.keys[1:] = torch.nan
        layer.values[1:] = torch.nan
    stepper = Stepper(runner)
    sequences = [Sequence(ids) for ids in prompts(lengths)]
    stepper.step([(sequence, len(sequence.token_ids) - 3) for sequence in sequences])
    stepper.step([(sequence, 2) for sequence in sequences])
    return runner.logits(stepper.batch([(sequence, 1) for sequence in sequences]))


@pytest.mark.slow
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
def test_a_model_on_them_gives_the_logits_of_a_dense_forward(family: str, deterministic: bool) -> None:
    from worker.model.cuda.operations import fast_operations, invariant_operations

    operations = invariant_operations() if deterministic else fast_operations()
    options: dict[str, Any] = {"dtype": torch.float32, "operations": operations, "deterministic": deterministic}
    logits = logits_of(runner_of(family, triton_kernels, recorder=RerunRecorder(), **options), [60, 17, 5])
    dense = torch.stack([expected_logits(family, ids)[-1] for ids in prompts([60, 17, 5])])
    torch.testing.assert_close(logits.double(), dense, rtol=1e-3, atol=1e-3)


def test_a_row_of_many_splits_is_what_plain_kernels_give() -> None:
    lengths = [300, 280]
    on_triton = logits_of(runner_of("mistral", triton_kernels, dtype=torch.float32), lengths)
    on_pytorch = logits_of(runner_of("mistral", dtype=torch.float32), lengths)
    torch.testing.assert_close(on_triton, on_pytorch, rtol=1e-3, atol=1e-3)


def test_half_precision_is_summed_in_fp32() -> None:
    lengths = [40, 18]
    half = runner_of("llama", triton_kernels, dtype=torch.float16)
    full = runner_of("llama", dtype=torch.float32)
    torch.testing.assert_close(logits_of(half, lengths), logits_of(full, lengths), rtol=0.05, atol=0.1)


def test_neither_neighbours_nor_lanes_enter_a_rows_bits() -> None:
    """Of attention: rows of products are PyTorch's here."""
    runners = [
        runner_of(new_kernels=functools.partial(triton_kernels, num_processors=number), dtype=torch.float32)
        for number in (1, 64)
    ]
    choices = [[0, 1, 2], [2, 0], [0]] * 2
    outputs = [_attended(runners[i // 3], rows) for i, rows in enumerate(choices)]
    for rows, output in zip(choices, outputs, strict=True):
        assert torch.equal(output, outputs[0][rows])


def _attended(runner: CudaRunner[BlockPlan], rows: list[int]) -> torch.Tensor:
    """One layer of attention for the last tokens of some of three sequences, on a pool of given values."""
    layer = attention_of(runner)._layers[0]
    for plane, seed in ((layer.keys, 1), (layer.values, 2)):
        plane.copy_(torch.randn(plane.shape, generator=torch.Generator().manual_seed(seed)))
    stepper = Stepper(runner)
    sequences = [Sequence(ids) for ids in prompts([300, 20, 5])]
    stepper.batch([(sequence, len(sequence.token_ids)) for sequence in sequences])  # the same blocks each time
    for sequence in sequences:
        sequence.num_computed = len(sequence.token_ids) - 1
    batch = stepper.batch([(sequences[row], 1) for row in rows])
    runner._inputs.begin()
    plan = attention_of(runner).plan(batch)
    runner._inputs.send()
    config = runner._model.config
    shape = (3, config.num_heads + 2 * config.num_kv_heads, config.head_dim)
    qkv = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    return attention_of(runner).attend(0, qkv[rows], plan)


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_product_is_the_same_to_the_bit_in_any_number_of_rows(has_bias: bool) -> None:
    from worker.model.cuda.operations import invariant_operations

    x, weight = torch.randn(70, 100, generator=GENERATOR), torch.randn(77, 100, generator=GENERATOR)
    bias = torch.randn(77, generator=GENERATOR) if has_bias else None
    product = invariant_operations().make_linear(weight, bias)
    whole = product(x)
    torch.testing.assert_close(whole, F.linear(x, weight, bias))
    for rows in (slice(0, 1), slice(69, 70), slice(3, 40)):
        assert torch.equal(product(x[rows]), whole[rows])


@pytest.mark.parametrize("has_weight", [False, True])
def test_norms_are_those_of_pytorch(has_weight: bool) -> None:
    from worker.model.cuda.operations import invariant_operations

    weight = torch.randn(24, generator=GENERATOR) if has_weight else None
    heads = torch.randn(5, 7, 24, generator=GENERATOR)[:, :4]  # rows lie apart
    for x in (heads, heads[:, 0].contiguous()):
        normed = invariant_operations().rms_norm(x, weight, 1e-5)
        torch.testing.assert_close(normed, F.rms_norm(x, (24,), weight, 1e-5))


def test_rotation_and_gating_are_those_of_pytorch() -> None:
    from worker.model.cuda.operations import fast_operations
    from worker.model.layers import gated, rotate

    ours = fast_operations()
    qkv = torch.randn(5, 7, 12, generator=GENERATOR)
    rotation = torch.polar(torch.full((5, 1, 6), 1.2), torch.randn(5, 1, 6, generator=GENERATOR))
    mine, theirs = qkv.clone(), qkv.clone()
    ours.rotate(mine[:, :4], rotation)
    rotate(theirs[:, :4], rotation)
    torch.testing.assert_close(mine, theirs)
    gate_up = torch.randn(3, 2 * 1100, generator=GENERATOR) * 4
    for activation in ("silu", "gelu_tanh"):
        torch.testing.assert_close(ours.gated(gate_up, activation), gated(gate_up, activation))


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_parts_a_worker_loads_fit_together(monkeypatch: pytest.MonkeyPatch, deterministic: bool) -> None:
    """All of `build_cuda_runner` but CUDA itself."""
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=2))
    monkeypatch.setattr(assembly, "CudaRecorder", RerunRecorder)
    options = CudaOptions(deterministic=deterministic, max_num_seqs=2, max_step_tokens=32)
    place = Placement(device="cpu", dtype="float32", threads=0, kv_cache_bytes=1 << 18, context_length=64)
    runner = assembly.build_cuda_runner(checkpoint_of("llama"), options, place, lambda _: None)
    [prompt] = prompts([9])
    sequence = Sequence(list(prompt), max_new=2)
    Stepper(runner).run([sequence], max_chunk=5)
    assert sequence.made == greedy(prompt, 2)
