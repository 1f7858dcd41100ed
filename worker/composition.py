"""From settings to an engine: which backend, and what it is told.

Each backend is imported only when it is the one: the simulated one runs without torch.
"""

from __future__ import annotations

import logging

from shared.config import WorkerSettings
from worker.backends.interface import Engine
from worker.engine.scheduling.config import SchedulerConfig

log = logging.getLogger(__name__)


def build_engine(settings: WorkerSettings) -> Engine:
    """The backend the settings name. A native one loads its model: seconds, and memory. Raises ConfigurationError."""
    makers = {"native": _native, "vllm": _vllm, "simulated": _simulated}
    return makers[settings.backend](settings)


def _simulated(settings: WorkerSettings) -> Engine:
    from worker.backends.simulated import SimulatedConfig, build_simulated

    return build_simulated(
        SimulatedConfig(
            name=settings.model_name or "simulated",
            scheduling=_scheduling(settings),
            kv_cache_tokens=settings.sim_kv_tokens,
            prefill_us_per_token=settings.sim_prefill_us_per_token,
            step_us=settings.sim_step_us,
            step_us_per_seq=settings.sim_step_us_per_seq,
            max_adapters=settings.max_adapters,
        )
    )


def _native(settings: WorkerSettings) -> Engine:
    from worker.backends.native import AdapterLimits, NativeConfig, build_native
    from worker.model.cpu.choice import KernelConfig
    from worker.model.cuda.choice import CudaOptions

    return build_native(
        NativeConfig(
            model_path=settings.model,
            name=settings.model_name,
            device=settings.device,
            threads=settings.threads,
            kv_cache_mb=settings.kv_cache_mb,
            kv_cache_share=settings.kv_cache_share,
            max_context=settings.max_context,
            kernels=KernelConfig(
                mode=settings.cpu_kernels,
                kv_cache_type=settings.kv_cache_type,
                activations=settings.cpu_activations,
                library_cache=settings.kernel_cache,
            ),
            dtype=settings.dtype,
            cuda=CudaOptions(
                mode=settings.gpu_kernels,
                graphs=settings.cuda_graphs,
                deterministic=settings.deterministic,
                max_num_seqs=settings.max_num_seqs,
                max_step_tokens=settings.max_step_tokens,
            ),
            scheduling=_scheduling(settings),
            adapters=AdapterLimits(settings.max_adapters, settings.max_adapter_rank),
        ),
        progress=lambda words: log.info("model_loading", extra={"progress": words}),
    )


def _vllm(settings: WorkerSettings) -> Engine:
    from worker.backends.vllm import VllmConfig, build_vllm
    from worker.backends.vllm_engine.core import CoreConfig

    return build_vllm(
        VllmConfig(
            core=CoreConfig(
                model_path=settings.model,
                dtype=settings.dtype,
                max_context=settings.max_context,
                max_num_seqs=settings.max_num_seqs,
                max_step_tokens=settings.max_step_tokens,
                policy=settings.scheduling_policy,
                caches_prefixes=settings.prefix_cache != "off",
                kv_cache_bytes=settings.kv_cache_mb << 20,
                block_size=settings.vllm_block_size,
                memory_share=settings.vllm_memory_share,
                enforce_eager=settings.vllm_enforce_eager,
                threads=settings.threads,
            ),
            name=settings.model_name,
            prefix_cache=settings.prefix_cache,
            refused=_refused_of_vllm(settings),
        ),
        progress=lambda words: log.info("model_loading", extra={"progress": words}),
    )


def _refused_of_vllm(settings: WorkerSettings) -> tuple[str, ...]:
    """Settings that promise something vLLM would not keep, where they are not left at their defaults."""
    asked = {
        "HEADRACE_SPECULATION": settings.speculation != "off",
        "HEADRACE_DETERMINISTIC": settings.deterministic,
        "HEADRACE_KV_CACHE_SHARE (HEADRACE_VLLM_MEMORY_SHARE is of all memory)": settings.kv_cache_share > 0,
        "HEADRACE_DEVICE (it takes the device it was built for, CUDA_VISIBLE_DEVICES which)": ":" in settings.device,
    }
    return tuple(name for name, is_asked in asked.items() if is_asked)


def _scheduling(settings: WorkerSettings) -> SchedulerConfig:
    return SchedulerConfig(
        max_num_seqs=settings.max_num_seqs,
        max_step_tokens=settings.max_step_tokens,
        policy=settings.scheduling_policy,
        prefix_cache=settings.prefix_cache,
        itl_target_ms=settings.itl_target_ms,
        overlap=settings.overlap,
        max_drafts=0 if settings.speculation == "off" else settings.speculation_tokens,
    )
