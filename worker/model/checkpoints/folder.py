"""A Hugging Face folder but for what its weights mean: settings, files, tokenizer, end tokens, and its digest.

Enough for a backend that computes by other means than ours. Nothing in the folder is executed: no pickles, no remote
code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer

from shared.errors import ConfigurationError
from shared.schemas import TokenizerBlob
from worker.model.checkpoints.checkpoint import digest_files


class ModelFolder:
    """`settings` is config.json, `file_of` says which file holds each tensor. `digest` covers every byte that can
    change an answer, the tokenizer apart. ConfigurationError when the folder is incomplete."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.resolve().name.lower()
        self.settings = _read_json(folder / "config.json", required=True)
        self.file_of = _weight_files(folder)
        self._folder = folder

    def read_tokenizer(self) -> tuple[TokenizerBlob, tuple[int, ...]]:
        """And the tokens that end an answer."""
        blob = _read_tokenizer(self._folder)
        generation = _read_json(self._folder / "generation_config.json")
        return blob, _stop_token_ids(generation, self.settings, blob)

    @property
    def architecture(self) -> str:
        return (self.settings.get("architectures") or ["(none)"])[0]

    def digest(self) -> str:
        """Reads every byte."""
        return digest_files([self._folder / "config.json", *sorted(set(self.file_of.values()))])


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
