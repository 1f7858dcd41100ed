"""Reads a Hugging Face folder: config.json, safetensors (one file or sharded), tokenizer, generation config.

Nothing in the folder is executed: no pickles, no remote code. Weights are mapped and copied one at a time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer

from shared.errors import ConfigurationError
from shared.schemas import TokenizerBlob
from worker.model.checkpoints.checkpoint import digest_files
from worker.model.families.catalogue import family_of_settings
from worker.model.families.settings import Settings

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class HuggingFaceCheckpoint:
    """An open folder (see `Checkpoint`). ConfigurationError when it is incomplete or of no family known here."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.resolve().name.lower()
        settings = _read_json(folder / "config.json", required=True)
        stated = Settings(settings)
        family = family_of_settings(stated)
        self.config = family.read_settings(stated)
        self._norm_offset = family.norm_offset
        self._file_of = _weight_files(folder)
        self._open: dict[Path, Any] = {}
        self.tokenizer_blob = _read_tokenizer(folder)
        generation = _read_json(folder / "generation_config.json")
        self.stop_token_ids = _stop_token_ids(generation, settings, self.tokenizer_blob)
        self.digest = digest_files([folder / "config.json", *sorted(set(self._file_of.values()))])

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


def _read_json(path: Path, *, required: bool = False) -> dict[str, Any]:
    if not path.is_file():
        if required:
            raise ConfigurationError(f"a Hugging Face model folder needs {path.name}; there is none in {path.parent}")
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigurationError(f"{path} is not JSON: {error}") from error


def _weight_files(folder: Path) -> dict[str, Path]:
    """Which file holds each tensor."""
    index = _read_json(folder / "model.safetensors.index.json")
    if index:
        files = {name: folder / Path(file).name for name, file in index["weight_map"].items()}
        missing = sorted({path.name for path in files.values() if not path.is_file()})
        if missing:
            raise ConfigurationError(f"{folder} lacks the weight files {', '.join(missing)}")
        return files
    path = folder / "model.safetensors"
    if not path.is_file():
        raise ConfigurationError(f"{folder} has neither model.safetensors nor model.safetensors.index.json")
    try:
        opened: Any = safe_open(path, framework="pt")
        return dict.fromkeys(opened.keys(), path)
    except SafetensorError as error:
        raise ConfigurationError(f"{path} is not a safetensors file: {error}") from error


def _read_tokenizer(folder: Path) -> TokenizerBlob:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ConfigurationError(f"a Hugging Face model folder needs tokenizer.json; there is none in {folder}")
    document = path.read_text(encoding="utf-8")
    settings = _read_json(folder / "tokenizer_config.json")
    special = {role: _token_text(settings.get(f"{role}_token")) for role in ("bos", "eos", "pad", "unk")}
    return TokenizerBlob(
        tokenizer_json=document,
        chat_template=_chat_template(folder, settings),
        bos_token=special["bos"],
        eos_token=special["eos"],
        pad_token=special["pad"],
        unk_token=special["unk"],
        add_bos_token=_adds_bos(document, special["bos"], settings.get("add_bos_token")),
    )


def _token_text(entry: Any) -> str | None:
    return entry if entry is None or isinstance(entry, str) else str(entry["content"])


def _chat_template(folder: Path, settings: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if template is None or isinstance(template, str):
        return template
    by_name: dict[str, str] = {entry["name"]: entry["template"] for entry in template}
    return by_name.get("default")


def _adds_bos(document: str, bos_token: str | None, stated: bool | None) -> bool:
    """What the config states; else what the tokenizer's own post-processor does to an empty text."""
    if bos_token is None or stated is not None:
        return bool(stated) and bos_token is not None
    try:
        return Tokenizer.from_str(document).encode("").tokens[:1] == [bos_token]
    except Exception as error:  # the tokenizers package raises plain Exception
        raise ConfigurationError(f"tokenizer.json cannot be loaded: {error}") from error


def _stop_token_ids(generation: dict[str, Any], settings: dict[str, Any], blob: TokenizerBlob) -> tuple[int, ...]:
    stated = generation.get("eos_token_id", settings.get("eos_token_id"))
    if stated is None and blob.eos_token is not None:
        stated = Tokenizer.from_str(blob.tokenizer_json).token_to_id(blob.eos_token)
    if stated is None:
        return ()
    return (stated,) if isinstance(stated, int) else tuple(sorted(stated))
