"""How fast: decode steps at several batch sizes, prompts, by each path; and how near the floor of memory bandwidth.

A time is the median of whole steps, from arrays on the host to token ids on the host. The floor is the bytes of the
weights and of the KV read, over the bandwidth measured here.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from loadtest.gpu.batches import BLOCK_SIZE, Prompts
from loadtest.gpu.paths import AnyRunner, Limits, Path, build
from loadtest.gpu.weights import RandomCheckpoint
from worker.model.attention import PagedAttention
from worker.model.runner import StepBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """`context` tokens a decoding sequence has; prompts of `prompt_tokens`, one and `num_prompts` at once."""

    decodes: tuple[int, ...] = (1, 8, 32, 128, 256)
    context: int = 512
    prompt_tokens: int = 2048
    num_prompts: int = 4
    max_steps: int = 40
    max_seconds: float = 1.5


@dataclass(frozen=True, slots=True)
class Figure:
    """`floor_share`: of the least time that memory allows, None for prompts."""

    path: Path
    load: str
    step_ms: float
    tokens_per_s: float
    floor_share: float | None


def read_bandwidth(device: torch.device) -> float:
    """Bytes a second, read and written, of a large copy."""
    size = 1 << 30 if device.type == "cuda" else 1 << 24
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = _median_seconds(lambda: target.copy_(source), device, max_steps=20, max_seconds=1.0)
    return 2 * size / seconds


def measure(
    path: Path, checkpoint: RandomCheckpoint, place: tuple[torch.device, torch.dtype], sizes: Sizes
) -> list[Figure]:
    """One runner, all loads."""
    bandwidth = read_bandwidth(place[0])
    most = max(sizes.decodes)
    num_blocks = 2 + max(
        most * -(-sizes.context // BLOCK_SIZE), sizes.num_prompts * -(-sizes.prompt_tokens // BLOCK_SIZE)
    )
    runner = build(
        path,
        checkpoint,
        place,
        Limits(
            num_blocks=num_blocks,
            context_length=max(sizes.context, sizes.prompt_tokens) + BLOCK_SIZE,
            max_num_seqs=most,
            max_step_tokens=max(sizes.num_prompts * sizes.prompt_tokens, most),
        ),
    )
    kv_token_bytes = PagedAttention.block_bytes(checkpoint.config, place[1]) / BLOCK_SIZE
    figures: list[Figure] = []
    vocab_size = checkpoint.config.vocab_size
    for num_seqs in sizes.decodes:
        batch = Prompts([sizes.context] * num_seqs, vocab_size=vocab_size, num_blocks=num_blocks).last_tokens()
        seconds = _step_seconds(runner, batch, place[0], sizes)
        floor = (checkpoint.num_bytes(place[1]) + num_seqs * sizes.context * kv_token_bytes) / bandwidth
        figures.append(Figure(path, f"decode {num_seqs}", seconds * 1e3, num_seqs / seconds, floor / seconds))
    for num_prompts in (1, sizes.num_prompts):
        batch = Prompts([sizes.prompt_tokens] * num_prompts, vocab_size=vocab_size, num_blocks=num_blocks).whole()
        seconds = _step_seconds(runner, batch, place[0], sizes)
        load = f"prompts {num_prompts} x {sizes.prompt_tokens}"
        figures.append(Figure(path, load, seconds * 1e3, len(batch.token_ids) / seconds, None))
    return figures


def _step_seconds(runner: AnyRunner, batch: StepBatch, device: torch.device, sizes: Sizes) -> float:
    return _median_seconds(
        lambda: runner.execute(batch), device, max_steps=sizes.max_steps, max_seconds=sizes.max_seconds
    )


def _median_seconds(run: Callable[[], object], device: torch.device, *, max_steps: int, max_seconds: float) -> float:
    """After three runs that do not count; the first of them may compile."""
    for _ in range(3):
        run()
    _synchronize(device)
    seconds: list[float] = []
    began = time.perf_counter()
    while len(seconds) < max_steps and (not seconds or time.perf_counter() - began < max_seconds):
        start = time.perf_counter()
        run()
        _synchronize(device)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
