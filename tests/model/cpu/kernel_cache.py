"""Kernels for tests: compiled into pytest's cache, so that only the first run compiles; and a tiny runner on them."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from worker.model.cpu.assembly import ROUNDINGS, Build, hand_over, model_sizes
from worker.model.cpu.build import find_library
from worker.model.cpu.library import Library
from worker.model.cpu.machine import available_sets
from worker.model.cpu.runner import CpuRunner
from worker.model.families.model_config import ModelConfig, Rope

CONTEXT = 4096


def kernel_cache(config: pytest.Config) -> Path:
    cache: Any = getattr(config, "cache", None)
    return Path(tempfile.gettempdir(), "headrace-test-kernels") if cache is None else Path(cache.mkdir("kernels"))


@functools.cache
def open_library(folder: Path, instructions: str) -> Library:
    found = next(candidate for candidate in available_sets() if candidate.name == instructions)
    return Library(find_library(found, folder))


class RandomCheckpoint:
    """A Llama with one layer and random weights that depend on their names only."""

    name = digest = "random"
    tokenizer_blob: Any = None
    stop_token_ids = ()

    def __init__(self, vocab_size: int) -> None:
        self.config = ModelConfig(
            architecture="llama",
            vocab_size=vocab_size,
            hidden_size=64,
            intermediate_size=64,
            num_layers=1,
            num_heads=2,
            num_kv_heads=1,
            head_dim=32,
            rms_norm_eps=1e-5,
            context_length=CONTEXT,
            tied_embeddings=True,
            ropes=(Rope(tuple(10_000 ** (-pair / 16) for pair in range(16))),),
            layer_ropes=(0,),
            layer_windows=(None,),
            attention_scale=32**-0.5,
        )

    def weight(self, name: str) -> torch.Tensor:
        if "norm" in name:
            return torch.ones(64)
        rows = {"embed_tokens": self.config.vocab_size, "k_proj": 32, "v_proj": 32}.get(name.split(".")[-2], 64)
        generator = torch.Generator().manual_seed(sum(name.encode()))
        return torch.randn(rows, 64, generator=generator) * (0.5 if "embed" in name else 0.25)

    def close(self) -> None:
        pass


def random_runner(library: Library, *, vocab_size: int, num_blocks: int, num_threads: int = 2) -> CpuRunner:
    checkpoint = RandomCheckpoint(vocab_size)
    terms = ROUNDINGS["mixed"]  # one term and two
    build = Build(context_length=CONTEXT, num_blocks=num_blocks, num_threads=num_threads, terms=terms)
    model = library.create(model_sizes(checkpoint.config, build))
    hand_over(checkpoint, model, context_length=CONTEXT, progress=lambda _: None)
    return CpuRunner(model, checkpoint.config, num_blocks=num_blocks)
