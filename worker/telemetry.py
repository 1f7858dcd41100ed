"""What a worker tells of itself: metrics of deliveries, steps and emits.

Steps are counted on the engine's thread, the rest on the event loop; prometheus-client locks. Knows no Redis calls.
"""

from __future__ import annotations

import logging

from shared.observability import WorkerMetrics
from shared.request_queue import Delivery
from shared.schemas import Request
from shared.token_stream import Emission, Emitted
from worker.engine.outputs import EngineLoad
from worker.engine.stats import StepStats

log = logging.getLogger(__name__)


class Telemetry:
    """Its methods are the callbacks of consumer, publisher and engine thread."""

    def __init__(self, metrics: WorkerMetrics) -> None:
        m = self._metrics = metrics
        self._blocks = m.kv_blocks.labels("used"), m.kv_blocks.labels("free")
        self._phases = tuple(m.step_duration.labels(phase) for phase in ("schedule", "execute", "output", "handoff"))
        self._tokens = m.step_tokens.labels("prefill"), m.step_tokens.labels("decode")
        self._prompt = m.prompt_tokens.labels("computed"), m.prompt_tokens.labels("cached")
        self._preempted = m.preemptions.labels("blocks"), m.preemptions.labels("displaced")
        self.is_muted = False  # while the worker warms up: what it computes then is nobody's
        self._gpu: dict[str, float] = {}
        self._counted: StepStats | None = None

    def on_delivery(self, delivery: Delivery, request: Request) -> None:
        kind = "requeued" if delivery.journal.count(b'["v","taken"') > 1 else "new"
        self._metrics.deliveries.labels(request.model, kind).inc()
        log.info("request_taken", extra={"request_id": request.request_id, "kind": kind, "owner": delivery.owner})

    def on_emit(self, seconds: float, emitted: Emitted, emissions: list[Emission]) -> None:
        self._metrics.emit_duration.observe(seconds)
        self._metrics.fenced.inc(len(emitted.fenced))
        if emitted.is_published:
            self._metrics.generation_tokens.inc(sum(emission.num_tokens for emission in emissions))

    def gpu_figures(self) -> dict[str, float]:
        """As they were last read; empty without a GPU that can be read."""
        return self._gpu

    def on_gpu(self, device: str, figures: dict[str, float]) -> None:
        """What worker/condition/gpu.py read."""
        self._gpu = figures
        for name, value in figures.items():
            self._metrics.gpu[name].labels(device).set(value)

    def on_step(self, seconds: float, load: EngineLoad) -> None:
        """`seconds` is the engine's step and the handing over of what it made."""
        if self.is_muted:
            return
        m, (used, free) = self._metrics, self._blocks
        m.requests_running.set(load.num_running)
        m.requests_waiting.set(load.num_waiting)
        used.set(load.kv_blocks_used)
        free.set(load.kv_blocks_total - load.kv_blocks_used)
        m.kv_cache_usage.set(load.kv_blocks_used / max(1, load.kv_blocks_total))
        stats = load.last_step
        if stats is not None and stats is not self._counted:
            self._counted = stats
            self._count(stats, seconds)

    def _count(self, stats: StepStats, seconds: float) -> None:
        times = (stats.schedule_s, stats.execute_s, stats.output_s, max(0.0, seconds - stats.seconds))
        for phase, phase_s in zip(self._phases, times, strict=True):
            phase.observe(phase_s)
        self._tokens[0].observe(stats.num_prefill_tokens)
        self._tokens[1].observe(stats.num_decode_tokens)
        self._metrics.batch_size.observe(stats.num_seqs)
        if stats.num_draft_tokens:
            self._metrics.draft_tokens.inc(stats.num_draft_tokens)
            self._metrics.accepted_tokens.inc(stats.num_accepted_tokens)
        if stats.num_asked_tokens:
            self._count_admitted(stats)
        if stats.num_preempted:
            self._preempted[0].inc(stats.num_preempted - stats.num_displaced)
            self._preempted[1].inc(stats.num_displaced)

    def _count_admitted(self, stats: StepStats) -> None:
        self._metrics.prefix_cache_queries.inc(stats.num_asked_tokens)
        self._metrics.prefix_cache_hits.inc(stats.num_found_tokens)
        self._metrics.recomputed_tokens.inc(stats.num_recomputed_tokens)
        self._prompt[0].inc(stats.num_prompt_tokens - stats.num_prompt_found_tokens)
        self._prompt[1].inc(stats.num_prompt_found_tokens)
