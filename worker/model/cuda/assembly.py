# pyright: basic
"""From a checkpoint to a GPU's runner: whether our kernels can run there, and all parts put together.

Triton is imported when a runner is built for a GPU, and not before: `assemble` puts the parts together on any device,
over whatever kernels it is given.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch

from shared.errors import ConfigurationError
from worker.model.checkpoints.checkpoint import Checkpoint
from worker.model.cpu.choice import Placement
from worker.model.cuda.attention import BLOCK_SIZE, BlockAttention, BlockPlan, Kernels
from worker.model.cuda.choice import CudaOptions
from worker.model.cuda.graphs import CudaRecorder, DecodeGraphs, Recorder, graph_sizes
from worker.model.cuda.inputs import StepInputs
from worker.model.cuda.runner import CudaRunner
from worker.model.decoder import DecoderModel
from worker.model.families.model_config import ModelConfig
from worker.model.kv_budget import usable_blocks

_MAX_HEAD_DIM = 256
_LEAST_CAPABILITY = (8, 0)  # what the kernels are compiled for in the tests; bfloat16 products need it
# For each row of a step: id, position (twice), slot, start, single, two ends of a tile.
_VALUES_A_ROW, _SLACK = 8, 1024

NewKernels = Callable[[ModelConfig, torch.Tensor], Kernels]


def obstacle(config: ModelConfig, place: Placement) -> str | None:
    """Why our kernels cannot run this model there; None: they can."""
    if torch.version.cuda is None:
        return "this PyTorch is not one for NVIDIA GPUs"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if place.dtype == "float64":
        return "the kernels compute in half precision or fp32"
    if config.head_dim > _MAX_HEAD_DIM:
        return f"heads of {config.head_dim} are too wide for the kernels"
    capability = torch.cuda.get_device_capability(torch.device(place.device))
    if capability < _LEAST_CAPABILITY:
        return f"compute capability {capability[0]}.{capability[1]} is below 8.0"
    return None


def build_cuda_runner(
    checkpoint: Checkpoint, options: CudaOptions, place: Placement, progress: Callable[[str], None]
) -> CudaRunner[BlockPlan]:
    """Of what has no `obstacle`. Loads the weights and records the graphs: seconds. ConfigurationError when memory is
    short."""
    from worker.model.cuda.operations import fast_operations, invariant_operations
    from worker.model.cuda.triton_kernels import TritonKernels

    device, dtype = torch.device(place.device), getattr(torch, place.dtype)
    operations = invariant_operations() if options.deterministic else fast_operations()
    sizes = {"context_length": place.context_length}

    def new_kernels(config: ModelConfig, pool: torch.Tensor) -> Kernels:
        num_processors = torch.cuda.get_device_properties(device).multi_processor_count
        max_rows = graph_sizes(options.max_num_seqs)[-1]
        return TritonKernels(config, pool, max_rows=max_rows, num_processors=num_processors, **sizes)

    try:
        with torch.cuda.device(device):
            model = DecoderModel(
                checkpoint, device=device, dtype=dtype, progress=progress, operations=operations, **sizes
            )
            blocks = usable_blocks(place, BlockAttention.block_bytes(checkpoint.config, dtype))
            progress("recording decode graphs" if options.graphs else "no decode graphs")
            recorder = CudaRecorder() if options.graphs else None
            return assemble(model, options, new_kernels, num_blocks=blocks, recorder=recorder, **sizes)
    except torch.OutOfMemoryError as error:
        raise ConfigurationError(f"the model and its KV cache do not fit in the GPU's memory: {error}") from error


def assemble(
    model: DecoderModel,
    options: CudaOptions,
    new_kernels: NewKernels,
    *,
    context_length: int,
    num_blocks: int,
    recorder: Recorder | None,
) -> CudaRunner[BlockPlan]:
    """The runner over a model, on whatever device that is. `recorder` None: no graphs."""
    graphs = None if recorder is None else DecodeGraphs(recorder, options.max_num_seqs)
    max_rows = max(options.max_step_tokens, graph_sizes(options.max_num_seqs)[-1])
    table_entries = options.max_num_seqs * -(-context_length // BLOCK_SIZE)
    inputs = StepInputs(_VALUES_A_ROW * max_rows + table_entries + _SLACK, model.device)
    pool = BlockAttention.new_pool(model.config, num_blocks, model.device, model.dtype)
    attention = BlockAttention(
        model.config, new_kernels(model.config, pool), inputs, pool, is_invariant=options.deterministic
    )
    return CudaRunner(model, attention, inputs, num_blocks=num_blocks, graphs=graphs)


def describe(options: CudaOptions, place: Placement) -> str:
    sums = "deterministic: each row summed by itself" if options.deterministic else "products by cuBLAS"
    sizes = graph_sizes(options.max_num_seqs)
    graphs = f"{len(sizes)} decode graphs up to {sizes[-1]} sequences" if options.graphs else "no graphs"
    return f"{torch.cuda.get_device_name(torch.device(place.device))}, {place.dtype}, {sums}, {graphs}"
