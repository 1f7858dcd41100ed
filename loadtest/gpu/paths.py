"""The ways to run one model that are compared: PyTorch's gathered attention, and ours eager, recorded, deterministic.

On a GPU the runners are those a worker would load. On a CPU the same parts run with plain kernels, so that the script
can be tried where there is no GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from loadtest.gpu.weights import RandomCheckpoint
from worker.model.attention import PagedAttention
from worker.model.cpu.choice import Placement
from worker.model.cuda.assembly import assemble, build_cuda_runner
from worker.model.cuda.attention import BlockPlan
from worker.model.cuda.choice import CudaOptions
from worker.model.cuda.graphs import RerunRecorder
from worker.model.cuda.plain_kernels import PlainKernels
from worker.model.cuda.runner import CudaRunner
from worker.model.decoder import DecoderModel
from worker.model.torch_runner import TorchRunner

Path = Literal["sdpa", "eager", "graphs", "deterministic"]
AnyRunner = TorchRunner | CudaRunner[BlockPlan]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    num_blocks: int
    context_length: int
    max_num_seqs: int
    max_step_tokens: int


def build(
    path: Path, checkpoint: RandomCheckpoint, place: tuple[torch.device, torch.dtype], limits: Limits
) -> AnyRunner:
    device, dtype = place
    if path == "sdpa":
        model = _model(checkpoint, device, dtype, limits)
        return TorchRunner(model, num_blocks=limits.num_blocks, device=device, dtype=dtype)
    options = CudaOptions(
        mode="triton",
        graphs=path != "eager",
        deterministic=path == "deterministic",
        max_num_seqs=limits.max_num_seqs,
        max_step_tokens=limits.max_step_tokens,
    )
    if device.type == "cuda":
        placement = Placement(
            device=str(device),
            dtype=str(dtype).removeprefix("torch."),
            threads=0,
            kv_cache_bytes=limits.num_blocks * PagedAttention.block_bytes(checkpoint.config, dtype),
            context_length=limits.context_length,
        )
        return build_cuda_runner(checkpoint, options, placement, lambda _: None)
    return assemble(
        _model(checkpoint, device, dtype, limits),
        options,
        PlainKernels,
        context_length=limits.context_length,
        num_blocks=limits.num_blocks,
        recorder=RerunRecorder() if options.graphs else None,
    )


def _model(checkpoint: RandomCheckpoint, device: torch.device, dtype: torch.dtype, limits: Limits) -> DecoderModel:
    return DecoderModel(
        checkpoint, context_length=limits.context_length, device=device, dtype=dtype, progress=lambda _: None
    )
