"""Our own engine over a model that the loader loaded: scheduler, KV accounting and runner put together.

The only place that knows both the model and the engine. Torch comes in with the loader, and only when a native
engine is built: a worker that simulates needs none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from shared.schemas import ModelCard, TokenizerBlob
from shared.text.tokenizer import Tokenizer
from worker.backends.interface import Engine
from worker.engine.adapters import AdapterShelf
from worker.engine.engine import EngineCore
from worker.engine.request import Vocabulary
from worker.engine.scheduling.config import SchedulerConfig
from worker.engine.structured import Automata
from worker.model.cpu.choice import KernelConfig
from worker.model.cuda.choice import CudaOptions
from worker.model.lora.source import PeftFolders
from worker.model.runner import AdapterRunner, AheadRunner, LoadedModel
from worker.model.sampling.table import is_plain
from worker.model.step_builder import RunnerExecutor, StepBuilder


@dataclass(frozen=True, slots=True)
class AdapterLimits:
    """How many may be loaded at a time, and of which rank at most. 0 of them: none."""

    number: int = 0
    rank: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeConfig:
    """`threads` 0: one a core, or what PyTorch takes by itself. `max_context` 0: as long as the model's. `kv_cache_mb`
    0: `kv_cache_share` of what is free with the weights loaded, and that 0 too: what suits the device.
    `kernels`: how a CPU computes; `cuda`: how a GPU does."""

    model_path: str
    name: str | None = None
    device: str = "cpu"
    threads: int = 0
    kv_cache_mb: int = 0
    kv_cache_share: float = 0.0
    max_context: int = 0
    dtype: str = "auto"
    kernels: KernelConfig = field(default_factory=KernelConfig)
    cuda: CudaOptions = field(default_factory=CudaOptions)
    scheduling: SchedulerConfig = field(default_factory=SchedulerConfig)
    adapters: AdapterLimits = field(default_factory=AdapterLimits)


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
        kv_cache_share=config.kv_cache_share,
        max_context=config.max_context,
        dtype=config.dtype,
        kernels=config.kernels,
        cuda=config.cuda,
        progress=progress,
    )
    return compose_native(model, config.scheduling, config.adapters)


def compose_native(
    model: LoadedModel, scheduling: SchedulerConfig, adapters: AdapterLimits | None = None
) -> EngineCore:
    """The engine over a loaded model, which it then owns."""
    runner = model.runner
    card: ModelCard = model.card
    blob: TokenizerBlob = model.tokenizer_blob
    builder = StepBuilder(
        max_num_seqs=scheduling.max_num_seqs, max_seq_tokens=card.max_request_tokens, block_size=runner.block_size
    )
    tokenizer = Tokenizer.from_blob(blob)
    return EngineCore(
        card,
        blob,
        scheduler=scheduling.build(
            num_blocks=runner.num_blocks,
            block_size=runner.block_size,
            is_plain=is_plain,
            runs_ahead=isinstance(runner, AheadRunner),
        ),
        executor=RunnerExecutor(runner, builder),
        vocabulary=Vocabulary(tokenizer.incremental, Automata.of_model(tokenizer, card).open),
        adapters=_shelf(model, adapters),
    )


def _shelf(model: LoadedModel, limits: AdapterLimits | None) -> AdapterShelf | None:
    runner = model.runner
    if limits is None or not limits.number or not isinstance(runner, AdapterRunner):
        return None
    return AdapterShelf(model.card, PeftFolders(runner, model.config, limits.rank), limits.number)
