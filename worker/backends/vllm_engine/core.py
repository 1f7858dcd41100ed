"""vLLM's engine in this process, as little of it as we use: sequences in, who got a token out, blocks counted.

The only module that knows vLLM's names (those of 0.32): `LLMEngine` is stepped by our thread, and its scheduler and
block pool are looked at, which is possible because they are in this process. vLLM tokenizes, detokenizes, samples and
stops nothing here. It must not be imported before `build_core` has set its environment.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from shared.errors import ConfigurationError
from shared.schemas import TokenLogprobs
from worker.backends.vllm_engine.choosing import KEY, TokenChooser, logits_processor
from worker.model.sampling.logprobs import LOWEST

# Read by vLLM. Its engine must be in our process, and its sampler the one that takes a logits processor on all devices.
_REQUIRED = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_V2_MODEL_RUNNER": "0"}
# What an operator may set otherwise: no usage reports, no downloads, our log format, threads left where they are.
_PREFERRED = {
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CONFIGURE_LOGGING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
_DECIMALS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreConfig:
    """`max_context`, `block_size` and `memory_share` 0: vLLM's own choice. `kv_cache_bytes` 0: what `memory_share` of
    the device's memory leaves. `num_blocks` 0: as many as fit; for tests."""

    model_path: str
    dtype: str = "auto"
    max_context: int = 0
    max_num_seqs: int = 32
    max_step_tokens: int = 512
    policy: str = "priority"
    caches_prefixes: bool = True
    kv_cache_bytes: int = 0
    block_size: int = 0
    memory_share: float = 0.0
    enforce_eager: bool = False
    threads: int = 0
    num_blocks: int = 0


class Entry(NamedTuple):
    """A sequence as vLLM is given it. `max_tokens` at least 1; `salt`: only those with an equal one share blocks."""

    key: str
    token_ids: list[int]
    max_tokens: int
    priority: int
    salt: str | None
    prompt_logprobs: int | None


class Made(NamedTuple):
    """A sequence that got a token. `prompt_logprobs`, once, of the second token and on. `is_over`: vLLM let it go."""

    key: str
    num_cached_tokens: int
    prompt_logprobs: list[TokenLogprobs] | None
    is_over: bool


class Standing(NamedTuple):
    """Of a sequence that vLLM holds."""

    num_blocks: int
    num_computed_tokens: int
    num_preemptions: int


class VllmCore:
    """`num_blocks` does not count the one that vLLM keeps for padding."""

    def __init__(self, llm: Any, chooser: TokenChooser) -> None:
        self._llm = llm
        self._scheduler: Any = llm.engine_core.engine_core.scheduler
        self._pool: Any = self._scheduler.kv_cache_manager.block_pool
        self._names: dict[str, str] = {}
        params = importlib.import_module("vllm.sampling_params")
        self._params: Any = params.SamplingParams
        self._delta: Any = params.RequestOutputKind.DELTA
        self._tokens_input: Any = importlib.import_module("vllm.inputs.engine").tokens_input
        self.chooser = chooser
        config = llm.vllm_config
        self.block_size: int = config.cache_config.block_size
        self.num_blocks: int = self._pool.num_gpu_blocks - 1
        self.num_groups: int = max(1, len(self._scheduler.kv_cache_config.kv_cache_groups))
        self.max_num_seqs: int = config.scheduler_config.max_num_seqs
        self.context_length: int = config.model_config.max_model_len
        self.vocab_size: int = config.model_config.get_vocab_size()
        self.dtype = str(config.model_config.dtype).removeprefix("torch.")

    @property
    def num_free_blocks(self) -> int:
        return self._pool.get_num_free_blocks()

    def num_running_and_waiting(self) -> tuple[int, int]:
        return self._scheduler.get_request_counts()

    def standing(self, key: str) -> Standing | None:
        """None: vLLM does not hold it."""
        request = self._scheduler.requests.get(self._names.get(key))
        if request is None:
            return None
        groups = self._scheduler.kv_cache_manager.get_block_ids(request.request_id)
        return Standing(sum(map(len, groups)), request.num_computed_tokens, request.num_preemptions)

    def add(self, entry: Entry) -> None:
        """Raises ValueError for what vLLM does not take."""
        params = self._params(
            temperature=0.0,
            max_tokens=entry.max_tokens,
            ignore_eos=True,
            prompt_logprobs=entry.prompt_logprobs,
            detokenize=False,
            output_kind=self._delta,
            extra_args={KEY: entry.key},
        )
        prompt = self._tokens_input(entry.token_ids, cache_salt=entry.salt)
        self._names[entry.key] = self._llm.add_request(entry.key, prompt, params, priority=entry.priority)

    def abort(self, keys: Iterable[str]) -> None:
        """Their blocks are free when it returns."""
        names = [name for name in (self._names.pop(key, None) for key in keys) if name is not None]
        if names:
            self._llm.abort_request(names, internal=True)

    def step(self) -> list[Made]:
        made: list[Made] = []
        for output in self._llm.step():
            key: str = output.request_id
            if output.finished:
                self._names.pop(key, None)
            scores = _scores(output) if output.prompt_logprobs else None
            made.append(Made(key, output.num_cached_tokens or 0, scores, output.finished))
        return made

    def forget_everything(self) -> None:
        """What runs and what is cached, as if it had just been built."""
        self.abort(list(self._names))
        self.chooser.sequences.clear()
        self.forget_prefixes()

    def forget_prefixes(self) -> None:
        """Nothing happens while a sequence holds blocks: vLLM forgets all or none."""
        self._llm.reset_prefix_cache()

    def close(self) -> None:
        self.chooser.close()
        self._llm.engine_core.shutdown()


def _scores(output: Any) -> list[TokenLogprobs]:
    """What vLLM tells of a prompt, a mapping a position; the first has none. NaN stays NaN."""
    told: list[TokenLogprobs] = []
    for token_id, found in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True):
        ranked = sorted(found.items(), key=lambda item: item[1].rank)
        top = tuple((rival, _finite(of_rival.logprob)) for rival, of_rival in ranked)
        told.append(TokenLogprobs(_finite(found[token_id].logprob), top))
    return told


def _finite(logprob: float) -> float:
    return round(min(0.0, max(logprob, LOWEST)), _DECIMALS) + 0.0 if logprob == logprob else logprob


def check_installed() -> None:
    """Raises ConfigurationError; does not import it, which takes seconds."""
    if importlib.util.find_spec("vllm") is None:
        raise ConfigurationError(
            "HEADRACE_BACKEND=vllm needs vLLM, which is not installed here: 'headrace[vllm]' goes into an environment "
            "of its own (make setup-vllm, and see docs/backends.md)"
        )


def build_core(config: CoreConfig, progress: Callable[[str], None]) -> VllmCore:
    """Loads the model into a vLLM engine: seconds to minutes. Raises ConfigurationError with vLLM's words."""
    check_installed()
    os.environ |= _REQUIRED | {name: os.environ.get(name, value) for name, value in _PREFERRED.items()}
    progress("importing vLLM")
    vllm: Any = importlib.import_module("vllm")
    chooser = TokenChooser(config.max_num_seqs)
    progress(f"vLLM {vllm.__version__} loads {config.model_path}")
    try:
        return VllmCore(_engine(config, chooser), chooser)
    except (ValueError, RuntimeError, ImportError, AttributeError, TypeError) as error:
        raise ConfigurationError(f"vLLM {vllm.__version__} does not start: {error}") from error


def _engine(config: CoreConfig, chooser: TokenChooser) -> Any:
    torch: Any = importlib.import_module("torch")
    platform: Any = importlib.import_module("vllm.platforms").current_platform
    interface: Any = importlib.import_module("vllm.v1.sample.logits_processor").LogitsProcessor
    if config.threads:
        torch.set_num_threads(config.threads)
    if config.enforce_eager:  # vLLM compiles some of its sampler all the same, for tens of seconds
        importlib.import_module("torch._dynamo").config.disable = True
    chosen = _chosen_arguments(config, is_cpu=platform.is_cpu())
    arguments: Any = importlib.import_module("vllm.engine.arg_utils").EngineArgs(
        model=config.model_path,
        skip_tokenizer_init=True,
        load_format="safetensors",
        generation_config="vllm",
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_step_tokens,
        scheduling_policy=config.policy,
        enable_prefix_caching=config.caches_prefixes,
        enforce_eager=config.enforce_eager,
        # A token must be known before the next one's parameters are: penalties and formats hang on it.
        async_scheduling=False,
        distributed_executor_backend="uni",
        logits_processors=[logits_processor(interface, chooser)],
        disable_log_stats=True,
        seed=0,
        **chosen,
    )
    whole = arguments.create_engine_config()
    executor: Any = importlib.import_module("vllm.v1.executor").Executor
    engine: Any = importlib.import_module("vllm.v1.engine.llm_engine").LLMEngine
    return engine(whole, executor.get_class(whole), log_stats=False, multiprocess_mode=False)


def _chosen_arguments(config: CoreConfig, *, is_cpu: bool) -> dict[str, object]:
    """Those that are left to vLLM where nothing was set. On a CPU its default would take nine tenths of the memory."""
    kv_cache_bytes = config.kv_cache_bytes or (1 << 30 if is_cpu and not config.memory_share else 0)
    dtype = ("float32" if is_cpu else "bfloat16") if config.dtype == "auto" else config.dtype
    wanted = {
        "dtype": dtype,
        "max_model_len": config.max_context,
        "kv_cache_memory_bytes": kv_cache_bytes,
        "block_size": config.block_size,
        "gpu_memory_utilization": config.memory_share,
        "num_gpu_blocks_override": config.num_blocks + 1 if config.num_blocks else 0,
    }
    return {name: value for name, value in wanted.items() if value}
