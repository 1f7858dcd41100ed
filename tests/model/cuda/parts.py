"""The parts of the GPU runner put together on a CPU, over tiny random models, and what they should answer."""

from __future__ import annotations

import functools
from typing import Any, cast

import numpy as np
import torch

from loadtest.gpu.dense import dense_logits
from loadtest.gpu.weights import FAMILIES, RandomCheckpoint, config_of
from worker.model.cuda.assembly import NewKernels, assemble
from worker.model.cuda.attention import BlockAttention, BlockPlan
from worker.model.cuda.choice import CudaOptions
from worker.model.cuda.graphs import Recorder
from worker.model.cuda.plain_kernels import PlainKernels
from worker.model.cuda.runner import CudaRunner
from worker.model.decoder import DecoderModel
from worker.model.layers import Operations

CPU = torch.device("cpu")
CONTEXT = 400


def checkpoint_of(family: str) -> RandomCheckpoint:
    return RandomCheckpoint(config_of(FAMILIES[family]), device=CPU)


def runner_of(
    family: str = "llama",
    new_kernels: NewKernels = PlainKernels,
    *,
    recorder: Recorder | None = None,
    dtype: torch.dtype = torch.float64,
    operations: Operations | None = None,
    **options: Any,
) -> CudaRunner[BlockPlan]:
    """64 KV blocks. `options`: of CudaOptions."""
    model = DecoderModel(
        checkpoint_of(family),
        context_length=CONTEXT,
        device=CPU,
        dtype=dtype,
        progress=lambda _: None,
        operations=operations or Operations(),
    )
    limits: dict[str, Any] = {"max_num_seqs": 12, "max_step_tokens": 600}
    chosen = CudaOptions(**(limits | options))
    return assemble(model, chosen, new_kernels, context_length=CONTEXT, num_blocks=64, recorder=recorder)


def attention_of(runner: CudaRunner[BlockPlan]) -> BlockAttention:
    return cast("BlockAttention", runner._attention)


def kernels_of(runner: CudaRunner[BlockPlan]) -> PlainKernels:
    return cast("PlainKernels", attention_of(runner)._kernels)


def prompts(lengths: list[int], seed: int = 0) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, 512, length).tolist() for length in lengths]


@functools.cache
def _weight(family: str, name: str) -> torch.Tensor:
    return checkpoint_of(family).weight(name).double()


def expected_logits(family: str, token_ids: list[int]) -> torch.Tensor:
    """[tokens, vocab] fp64"""
    return dense_logits(config_of(FAMILIES[family]), functools.partial(_weight, family), token_ids)


def greedy(prompt: list[int], num_tokens: int) -> list[int]:
    token_ids = list(prompt)
    for _ in range(num_tokens):
        token_ids.append(int(expected_logits("llama", token_ids)[-1].argmax()))
    return token_ids[len(prompt) :]
