"""Reads a GGUF file as a `Checkpoint`: weights as fp32 under Hugging Face's names.

Tensor names come from the `gguf` package's tables, and so does dequantization. Of the llama architecture a file
has the rows of Q and K in the order of rotated neighbours; `weight` puts them back half a head apart.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf import MODEL_ARCH_NAMES, dequantize, get_tensor_name_map

from shared.errors import ConfigurationError
from worker.model.checkpoints.checkpoint import digest_files
from worker.model.checkpoints.gguf_file import GGUFFile, StoredTensor
from worker.model.checkpoints.gguf_tokenizer import read_tokenizer
from worker.model.families.catalogue import family_of_metadata
from worker.model.families.metadata import Metadata

_ROPE_DIVISORS = "rope_freqs.weight"
_ROW_VALUES = 16_384  # sixteen rows of them stay in a cache


class GGUFCheckpoint:
    """An open GGUF file (see `Checkpoint`). ConfigurationError when it is not one, or of no family known here."""

    def __init__(self, path: Path) -> None:
        file = GGUFFile(path)
        self._tensors = file.tensors
        divisors = None
        if _ROPE_DIVISORS in self._tensors:
            divisors = [float(divisor) for divisor in _values(_ROPE_DIVISORS, self._tensors[_ROPE_DIVISORS])]
        metadata = Metadata(file.fields, self._tensors.keys(), divisors)
        family = family_of_metadata(metadata)
        self._has_neighbour_pairs = family.has_neighbour_pairs
        self.config = family.read_metadata(metadata)
        self.tokenizer_blob, self.stop_token_ids = read_tokenizer(metadata)
        architecture = next(arch for arch, name in MODEL_ARCH_NAMES.items() if name == family.gguf)
        self._names = get_tensor_name_map(architecture, self.config.num_layers)
        self.name = path.stem.lower()
        self.digest = digest_files([path])

    def weight(self, name: str) -> torch.Tensor:
        stored = self.stored(name)
        weight = torch.from_numpy(_values(name, stored))
        pair_heads = self.pair_heads(name)
        return _unpermute(weight, pair_heads) if pair_heads else weight

    def stored(self, name: str) -> StoredTensor:
        """The tensor as the file has it: packed blocks, and rows in the file's own order (`pair_heads`)."""
        stored_name = self._names.get_name(name, try_suffixes=(".weight", ".bias"))
        if stored_name not in self._tensors:
            raise ConfigurationError(f"the GGUF file has no tensor {stored_name!r} ({name})")
        return self._tensors[stored_name]

    def pair_heads(self, name: str) -> int:
        """In how many heads the stored rows lie as rotated neighbours (0, 1), (2, 3) ..; 0 where they do not."""
        if self._has_neighbour_pairs and ".self_attn.q_proj." in name:
            return self.config.num_heads
        if self._has_neighbour_pairs and ".self_attn.k_proj." in name:
            return self.config.num_kv_heads
        return 0

    def close(self) -> None:
        self._tensors = {}  # the file stays mapped while a tensor of it lives


def _values(name: str, stored: StoredTensor) -> npt.NDArray[np.float32]:
    """fp32, of the tensor's shape."""
    try:
        values = dequantize(_long_rows(stored), stored.tensor_type)
    except NotImplementedError as error:
        raise ConfigurationError(f"{name} is of type {stored.tensor_type.name}, which is not supported") from error
    return np.require(values, np.float32, "W").reshape(stored.shape)  # a copy only of what is mapped


def _long_rows(stored: StoredTensor) -> npt.NDArray[np.uint8]:
    """The same blocks in fewer rows: `dequantize` takes 16 at a time, each time at the cost of many small calls."""
    rows = int(np.prod(stored.shape[:-1]))
    merged = 1
    while rows % (2 * merged) == 0 and 2 * merged * stored.shape[-1] <= _ROW_VALUES:
        merged *= 2
    return stored.data.reshape(rows // merged, -1)


def _unpermute(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """[heads * (pair, 2), ..] -> [heads * (2, pair), ..]: neighbours move half a head apart."""
    pairs = weight.view(num_heads, -1, 2, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape)
