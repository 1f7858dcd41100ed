"""Which path computes on a CPU, the kernels or PyTorch, and why: one log line at start says it.

The kernels are taken when they can be: the device is a CPU, the model holds nothing they lack, and a library is
built or can be. Else PyTorch computes, told as a warning unless it was asked for.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shared.errors import ConfigurationError
from worker.model.cpu.build import BuildError, find_library
from worker.model.cpu.machine import InstructionSet, available_sets, physical_cores

if TYPE_CHECKING:
    from worker.model.checkpoints.checkpoint import Checkpoint
    from worker.model.cpu.library import Library
    from worker.model.cpu.runner import CpuRunner

log = logging.getLogger(__name__)

Mode = Literal["auto", "native", "torch"]
CacheType = Literal["auto", "float16", "float32"]
Activations = Literal["int16", "mixed", "int8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConfig:
    """`mode` auto: the kernels if they can be had; native: nothing else will do. `kv_cache_type` auto: float16.
    `activations`: what products round them to.
    `library_cache` '': a folder of the user's. `instructions` None: the best this machine has."""

    mode: Mode = "auto"
    kv_cache_type: CacheType = "auto"
    activations: Activations = "mixed"
    library_cache: str = ""
    compiler: str = ""
    instructions: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where and how large. `threads` 0: one a core. `kv_cache_bytes` 0: `kv_cache_share` of what is free beside the
    weights; that 0 as well: what suits the device (worker/model/kv_budget.py)."""

    device: str
    dtype: str
    threads: int
    kv_cache_bytes: int
    context_length: int
    kv_cache_share: float = 0.0


class _Unavailable(Exception):
    """The kernels cannot be had; the message says why."""


def try_load(
    config: KernelConfig, checkpoint: Checkpoint, place: Placement, progress: Callable[[str], None]
) -> CpuRunner | None:
    """The fast runner with the checkpoint's weights, or None: PyTorch is to compute.

    ConfigurationError when the kernels are demanded and cannot be had, or when the KV cache holds nothing.
    """
    if not place.device.startswith("cpu"):
        return None
    if config.mode == "torch":
        log.info("compute_path", extra={"path": "torch", "why": "asked for"})
        return None
    try:
        library = _open_library(config, checkpoint, place)
    except _Unavailable as error:
        if config.mode == "native":
            raise ConfigurationError(f"the CPU kernels are asked for and cannot be used: {error}") from error
        log.warning("compute_path", extra={"path": "torch", "why": str(error)})
        return None
    return _load(config, library, checkpoint, place, progress)


def _open_library(config: KernelConfig, checkpoint: Checkpoint, place: Placement) -> Library:
    from worker.model.cpu.assembly import obstacle
    from worker.model.cpu.library import Library

    if place.dtype != "float32":
        raise _Unavailable(f"{place.dtype} is asked for")
    lacking = obstacle(checkpoint.config)
    if lacking is not None:
        raise _Unavailable(f"the kernels have no {lacking}")
    reasons: list[str] = []
    for instructions in _candidates(config):
        try:
            return Library(find_library(instructions, _cache_folder(config), config.compiler))
        except (BuildError, OSError) as error:
            reasons.append(f"{instructions.name}: {error}")
    raise _Unavailable("; ".join(reasons) or f"this processor has no {config.instructions}")


def _candidates(config: KernelConfig) -> list[InstructionSet]:
    """An older compiler may not know the newest instructions: the next set is tried then."""
    return [found for found in available_sets() if config.instructions in (None, found.name)]


def _cache_folder(config: KernelConfig) -> Path:
    """Code is loaded from it, so it must not be another user's."""
    try:
        folder = Path(config.library_cache) if config.library_cache else Path.home() / ".cache" / "headrace"
    except RuntimeError as error:
        raise BuildError(f"there is no home folder to build in: {error}") from error
    if folder.exists() and folder.stat().st_uid not in (0, os.getuid()):
        raise BuildError(f"{folder} belongs to another user")
    return folder


def _load(
    config: KernelConfig, library: Library, checkpoint: Checkpoint, place: Placement, progress: Callable[[str], None]
) -> CpuRunner:
    import torch

    from worker.model.cpu.assembly import ROUNDINGS, Build, block_bytes, hand_over, model_sizes
    from worker.model.cpu.runner import CpuRunner
    from worker.model.kv_budget import reservable_blocks, usable_blocks

    torch.set_num_threads(1)  # it only samples; its threads and the kernels' would take each other's cores
    kv_is_half = config.kv_cache_type != "float32"
    bytes_a_block = block_bytes(checkpoint.config, kv_is_half=kv_is_half)
    reserved = reservable_blocks(place, bytes_a_block)
    build = Build(
        context_length=place.context_length,
        num_blocks=reserved,
        num_threads=place.threads or physical_cores(),
        kv_is_half=kv_is_half,
        terms=ROUNDINGS[config.activations],
    )
    try:
        model = library.create(model_sizes(checkpoint.config, build))
        hand_over(checkpoint, model, context_length=place.context_length, progress=progress)
    except MemoryError as error:
        raise ConfigurationError(f"the model and its KV cache do not fit in memory: {error}") from error
    kv_cache = "float16" if kv_is_half else "float32"
    how = f"{library.instructions}, {build.num_threads} threads, {config.activations} activations, {kv_cache} KV cache"
    log.info("compute_path", extra={"path": "native", "why": how})
    usable = usable_blocks(place, bytes_a_block, most=reserved)
    return CpuRunner(model, checkpoint.config, num_blocks=usable)
