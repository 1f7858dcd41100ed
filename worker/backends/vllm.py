"""vLLM behind the engine's contract: a Hugging Face folder, its tokenizer and card read by us, its model run by vLLM.

vLLM is imported only when this backend is built. The revision says that vLLM computes, and in what precision: no stream
begun by another engine, or in another precision, is gone on with here. See docs/backends.md for what it cannot do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from shared.errors import ConfigurationError
from shared.schemas import ModelCard, Prefix, Request, SamplingParams, TokenizerBlob
from shared.text.tokenizer import Tokenizer, blob_digest
from worker.backends.interface import Engine
from worker.backends.vllm_engine.core import CoreConfig, VllmCore, build_core, check_installed
from worker.backends.vllm_engine.engine import VllmEngine
from worker.engine.kv_cache_manager import CacheScope
from worker.engine.request import Vocabulary
from worker.engine.structured import Automata
from worker.model.checkpoints.folder import ModelFolder
from worker.model.identity import clean_name, revision_of

POLICIES = ("priority", "fcfs")


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmConfig:
    """`prefix_cache` is one of CacheScope; `refused` names settings that were asked for and vLLM has nothing like."""

    core: CoreConfig
    name: str | None = None
    prefix_cache: str = "tenant"
    refused: tuple[str, ...] = field(default=())


def build_vllm(config: VllmConfig, *, progress: Callable[[str], None]) -> Engine:
    """Loads the model: seconds to minutes, and memory for weights and KV cache. Raises ConfigurationError."""
    _check(config)
    check_installed()
    core = build_core(config.core, progress)
    card, blob = read_card(core, config.core.model_path, config.name)
    progress(f"{card.revision}: {core.num_blocks} KV blocks of {core.block_size} tokens, {core.dtype}, by vLLM")
    engine = compose_vllm(core, card, blob, CacheScope(config.prefix_cache))
    _warm_up(engine)
    return engine


def read_card(core: VllmCore, path: str, name: str | None = None) -> tuple[ModelCard, TokenizerBlob]:
    """What workers register of the model in this folder, run by this core; and its tokenizer."""
    folder = ModelFolder(Path(path))
    blob, stop_token_ids = folder.read_tokenizer()
    name = clean_name(name or folder.name)
    tokenizer_digest = blob_digest(blob)
    card = ModelCard(
        name=name,
        revision=revision_of(name, folder.digest(), tokenizer_digest, "vllm", core.dtype),
        architecture=folder.architecture,
        context_length=core.context_length,
        max_request_tokens=min(core.context_length, core.num_blocks // core.num_groups * core.block_size),
        vocab_size=core.vocab_size,
        stop_token_ids=stop_token_ids,
        tokenizer_digest=tokenizer_digest,
        created_s=int(time.time()),
    )
    return card, blob


def compose_vllm(core: VllmCore, card: ModelCard, blob: TokenizerBlob, scope: CacheScope = CacheScope.TENANT) -> Engine:
    """The engine over a core, which it then owns."""
    tokenizer = Tokenizer.from_blob(blob)
    vocabulary = Vocabulary(tokenizer.incremental, Automata.of_model(tokenizer, card).open)
    return VllmEngine(card, blob, core=core, vocabulary=vocabulary, scope=scope)


def _warm_up(engine: Engine) -> None:
    """vLLM compiles some of what it needs when it is first asked: seconds in which a worker would look dead."""
    params = SamplingParams(max_tokens=2, seed=0, temperature=1.0, prompt_logprobs=1, ignore_eos=True)
    engine.add(Request(request_id="warm-up", model=engine.card.revision, prompt_ids=(0, 0), params=params), [Prefix()])
    while engine.has_work():
        engine.step()


def _check(config: VllmConfig) -> None:
    """What can be said before anything is loaded."""
    core = config.core
    if config.refused:
        raise ConfigurationError(f"the vLLM backend has nothing like {', '.join(config.refused)}")
    if core.policy not in POLICIES:
        raise ConfigurationError(
            f"vLLM schedules by {' or '.join(POLICIES)}: HEADRACE_SCHEDULING_POLICY={core.policy} is ours alone"
        )
    if core.max_step_tokens < core.max_num_seqs:
        raise ConfigurationError(
            f"vLLM needs HEADRACE_MAX_STEP_TOKENS ({core.max_step_tokens}) to be at least "
            f"HEADRACE_MAX_NUM_SEQS ({core.max_num_seqs})"
        )
    if not Path(core.model_path).is_dir():
        raise ConfigurationError(
            f"the vLLM backend reads a Hugging Face folder with safetensors; HEADRACE_MODEL={core.model_path} is none"
        )
