"""Which path computes on a GPU, our kernels or PyTorch's attention, and why: one log line at start says it.

The kernels are taken when they can be: Triton is there, the GPU and the numbers are such that they compile. No torch
here until a GPU is asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from shared.errors import ConfigurationError
from worker.model.cpu.choice import Placement
from worker.model.runner import Runner

if TYPE_CHECKING:
    from worker.model.checkpoints.checkpoint import Checkpoint

log = logging.getLogger(__name__)

Mode = Literal["auto", "triton", "torch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaOptions:
    """`mode` auto: our kernels if they can run; triton: nothing else will do.

    The limits are the scheduler's: graphs, buffers and parts are made for them. `deterministic`: a request's tokens
    are the same in any batch, to the bit, at a price (docs/engine.md).
    """

    mode: Mode = "auto"
    graphs: bool = True
    deterministic: bool = False
    max_num_seqs: int = 32
    max_step_tokens: int = 256


def try_load_cuda(
    options: CudaOptions, checkpoint: Checkpoint, place: Placement, progress: Callable[[str], None]
) -> Runner | None:
    """The GPU's runner with the checkpoint's weights, or None: PyTorch is to compute.

    ConfigurationError when the kernels are demanded and cannot be had, or when memory is short.
    """
    if not place.device.startswith("cuda"):
        return None
    if options.mode == "torch":
        log.info("compute_path", extra={"path": "torch", "why": "asked for"})
        return None
    from worker.model.cuda import assembly

    why_not = assembly.obstacle(checkpoint.config, place)
    if why_not is None:
        runner = assembly.build_cuda_runner(checkpoint, options, place, progress)
        log.info("compute_path", extra={"path": "triton", "why": assembly.describe(options, place)})
        return runner
    if options.mode == "triton":
        raise ConfigurationError(f"the GPU kernels are asked for and cannot be used: {why_not}")
    log.warning("compute_path", extra={"path": "torch", "why": why_not})
    return None
