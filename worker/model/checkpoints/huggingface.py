"""Reads the weights of a Hugging Face folder, safetensors in one file or sharded, as its family means them.

Weights are mapped and copied one at a time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from shared.errors import ConfigurationError
from worker.model.checkpoints.folder import ModelFolder
from worker.model.families.catalogue import family_of_settings
from worker.model.families.settings import Settings

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class HuggingFaceCheckpoint:
    """An open folder (see `Checkpoint`). ConfigurationError when it is incomplete or of no family known here."""

    def __init__(self, folder: Path) -> None:
        opened = ModelFolder(folder)
        self.name = opened.name
        stated = Settings(opened.settings)
        family = family_of_settings(stated)
        self.config = family.read_settings(stated)
        self._norm_offset = family.norm_offset
        self._file_of = opened.file_of
        self._open: dict[Path, Any] = {}
        self.tokenizer_blob, self.stop_token_ids = opened.read_tokenizer()
        self.digest = opened.digest()

    def weight(self, name: str) -> torch.Tensor:
        if name not in self._file_of:
            raise ConfigurationError(f"the checkpoint has no tensor {name!r}")
        path = self._file_of[name]
        try:
            if path not in self._open:
                self._open[path] = safe_open(path, framework="pt")
            weight: torch.Tensor = self._open[path].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ConfigurationError(f"cannot read {name!r} from {path}: {error}") from error
        if weight.dtype not in _DTYPES:
            raise ConfigurationError(f"{name} is of type {weight.dtype}; supported are F32, F16 and BF16")
        if self._norm_offset and name.endswith("norm.weight"):
            wide = torch.promote_types(weight.dtype, torch.float32)  # a half-precision sum would lose bits
            return weight.to(wide) + self._norm_offset
        return weight

    def close(self) -> None:
        self._open.clear()
