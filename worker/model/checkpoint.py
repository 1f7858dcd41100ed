"""What a model file must say, whatever its format: sizes, rotary frequencies, weights by name, tokenizer.

Readers (gguf.py, huggingface.py) turn a file into a `Checkpoint`; llama.py builds a model from one.
Weight names and layouts are Hugging Face's: `model.layers.0.self_attn.q_proj.weight`, rows are outputs, and
the two halves of a rotated pair lie half a head apart.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from shared.errors import ConfigurationError
from shared.schemas import TokenizerBlob


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of a Llama-family model. `sliding_window`: a token sees at most that many tokens; None is all."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    context_length: int
    rope_frequencies: tuple[float, ...]  # [head_dim / 2], radians a position
    tied_embeddings: bool
    sliding_window: int | None = None


class Checkpoint(Protocol):
    """An open model file. `digest` covers every byte that can change an answer, the tokenizer apart."""

    name: str
    digest: str
    config: ModelConfig
    tokenizer_blob: TokenizerBlob
    stop_token_ids: tuple[int, ...]

    def weight(self, name: str) -> torch.Tensor:
        """The tensor in the file's precision or fp32; may share the file's memory. ConfigurationError if absent."""
        ...

    def close(self) -> None: ...


def rope_frequencies(head_dim: int, theta: float, scaling: Mapping[str, Any] | None) -> tuple[float, ...]:
    """Angle a position of each rotated pair (RoFormer; Llama 3.1's scaling of long wavelengths).

    ConfigurationError for a scaling whose formula is not known here.
    """
    plain = [theta ** (-2.0 * pair / head_dim) for pair in range(head_dim // 2)]
    kind = "default" if not scaling else scaling.get("rope_type", scaling.get("type", "default"))
    if kind in ("default", "none"):
        return tuple(plain)
    assert scaling is not None
    if kind == "linear":
        return tuple(frequency / scaling["factor"] for frequency in plain)
    if kind == "llama3":
        return tuple(_llama3(frequency, scaling) for frequency in plain)
    raise ConfigurationError(f"rope scaling {kind!r} is not supported; supported are default, linear and llama3")


def _llama3(frequency: float, scaling: Mapping[str, Any]) -> float:
    """Short waves stay, long ones are slowed by `factor`, those between are interpolated."""
    factor, low, high = scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * frequency / (2 * math.pi)
    smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
    return (1 - smooth) * frequency / factor + smooth * frequency


def digest_files(paths: Iterable[Path]) -> str:
    """Of the contents and their order, not of the names."""
    total = hashlib.blake2b(digest_size=32)
    for path in paths:
        with path.open("rb") as file:
            total.update(hashlib.file_digest(file, "blake2b").digest())
    return total.hexdigest()
