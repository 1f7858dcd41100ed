"""What a model file must say, whatever its format: a description, weights by name, tokenizer, end tokens.

Readers (gguf.py, huggingface.py) turn a file into a `Checkpoint`; decoder.py builds a model from one.
Weight names and layouts are Hugging Face's: `model.layers.0.self_attn.q_proj.weight`, rows are outputs, and
the two halves of a rotated pair lie half a head apart. A norm's weight is what the normalized value is
multiplied by, also where the file stores it less one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import torch

from shared.schemas import TokenizerBlob
from worker.model.families.model_config import ModelConfig


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


def digest_files(paths: Iterable[Path]) -> str:
    """Of the contents and their order, not of the names."""
    total = hashlib.blake2b(digest_size=32)
    for path in paths:
        with path.open("rb") as file:
            total.update(hashlib.file_digest(file, "blake2b").digest())
    return total.hexdigest()
