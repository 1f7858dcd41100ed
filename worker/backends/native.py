"""Our own engine over a model that the loader loaded: scheduler, KV accounting and runner put together.

The only place that knows both the model and the engine. Torch comes in with the loader, and only when a native
engine is built: a worker that simulates needs none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shared.schemas import ModelCard, TokenizerBlob
from shared.text.tokenizer import Tokenizer
from worker.backends.interface import Engine
from worker.engine.engine import EngineCore
from worker.engine.kv_cache_manager import KVCacheManager
from worker.engine.policies import FirstComeFirstServed
from worker.engine.scheduler import Scheduler
from worker.model.runner import LoadedModel
from worker.model.step_builder import RunnerExecutor, StepBuilder


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeConfig:
    """`threads` 0: the number PyTorch takes by itself. `max_context` 0: as long as the model's."""

    model_path: str
    name: str | None = None
    device: str = "cpu"
    threads: int = 0
    kv_cache_mb: int = 1024
    max_context: int = 0
    max_num_seqs: int = 32
    max_step_tokens: int = 256


def build_native(config: NativeConfig, *, progress: Callable[[str], None] | None = None) -> Engine:
    """Loads the model: takes seconds, and memory for weights and KV cache. Raises ConfigurationError.

    `progress` is called with words while it loads.
    """
    from worker.model.loader import load_model

    model = load_model(
        config.model_path,
        name=config.name,
        device=config.device,
        threads=config.threads,
        kv_cache_bytes=config.kv_cache_mb << 20,
        max_context=config.max_context,
        progress=progress,
    )
    return compose_native(model, max_num_seqs=config.max_num_seqs, max_step_tokens=config.max_step_tokens)


def compose_native(model: LoadedModel, *, max_num_seqs: int, max_step_tokens: int) -> Engine:
    """The engine over a loaded model, which it then owns."""
    runner = model.runner
    kv = KVCacheManager(num_blocks=runner.num_blocks, block_size=runner.block_size)
    card: ModelCard = model.card
    blob: TokenizerBlob = model.tokenizer_blob
    builder = StepBuilder(
        max_num_seqs=max_num_seqs, max_seq_tokens=card.max_request_tokens, block_size=runner.block_size
    )
    return EngineCore(
        card,
        blob,
        scheduler=Scheduler(kv, FirstComeFirstServed(), max_num_seqs=max_num_seqs, max_step_tokens=max_step_tokens),
        executor=RunnerExecutor(runner, builder),
        new_decoder=Tokenizer.from_blob(blob).incremental,
    )
