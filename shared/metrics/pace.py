"""How fast requests went, as the gateway that admitted them hears it: the wait, the prefill, each gap between tokens.

All differences are of one process's monotonic clock. What a client takes slowly counts as a gap here, since it is read
only when the one before was taken.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from prometheus_client import CollectorRegistry

from shared.metrics.maker import DURATION_BUCKETS, ITL_BUCKETS, Maker
from shared.schemas import EndFrame, EventFrame, Frame, Outcome, TokensFrame


class PaceMetrics:
    """One a gateway process. The limits are those of the service level, in seconds."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make, by_class = Maker(registry), ("model", "class")
        self.queue_wait = make.histogram(
            "queue_wait_seconds", "From receipt to being taken the first time", DURATION_BUCKETS, *by_class
        )
        self.prefill = make.histogram(
            "prefill_seconds", "From being taken first to the first token", DURATION_BUCKETS, *by_class
        )
        self.decode = make.histogram("decode_seconds", "From the first token to the end", DURATION_BUCKETS, *by_class)
        self.inter_token_latency = make.histogram(
            "inter_token_latency_seconds", "Between two arrivals of tokens", ITL_BUCKETS, "model"
        )
        self.time_per_output_token = make.histogram(
            "time_per_output_token_seconds", "Mean time of a token after the first", ITL_BUCKETS, "model"
        )
        self.slo_requests = make.counter(
            "slo_requests_total", "Requests that ended, by whether they kept a limit", *by_class, "slo", "result"
        )


class Pace:
    """One request's. `heard` each batch of its frames once, in order; a batch with its EndFrame is the last."""

    __slots__ = ("_first_at", "_gaps", "_labels", "_last_at", "_limits", "_metrics", "_received_at", "_taken_at")

    def __init__(
        self, metrics: PaceMetrics, labels: tuple[str, str], received_at: float, limits: tuple[float, float]
    ) -> None:
        """`labels`: model and class. `limits`: seconds to the first token, and a token after it."""
        self._metrics, self._labels, self._limits = metrics, labels, limits
        self._gaps = metrics.inter_token_latency.labels(labels[0])
        self._received_at = received_at
        self._taken_at = self._first_at = self._last_at = 0.0

    def heard(self, frames: Sequence[Frame]) -> None:
        now = time.monotonic()
        if not self._taken_at and any(isinstance(frame, EventFrame) and frame.name == "taken" for frame in frames):
            self._taken_at = now
            self._metrics.queue_wait.labels(*self._labels).observe(now - self._received_at)
        if any(isinstance(frame, TokensFrame) for frame in frames):
            if self._last_at:
                self._gaps.observe(now - self._last_at)
            else:
                self._first_at = now
                self._metrics.prefill.labels(*self._labels).observe(now - (self._taken_at or now))
            self._last_at = now
        end = frames[-1]
        if isinstance(end, EndFrame):
            self._count_end(end, now)

    def _count_end(self, end: EndFrame, now: float) -> None:
        if end.outcome is Outcome.CANCELLED:
            return  # whoever left is not who was kept waiting
        is_whole = end.outcome is Outcome.FINISHED
        ttft_s = (self._first_at or now) - self._received_at
        self._judge("ttft", is_kept=bool(self._first_at) and ttft_s <= self._limits[0])
        num_after_first = (end.usage.completion_tokens if end.usage else 0) - 1
        if self._first_at:
            self._metrics.decode.labels(*self._labels).observe(now - self._first_at)
        if self._first_at and num_after_first > 0:
            per_token_s = (self._last_at - self._first_at) / num_after_first
            self._metrics.time_per_output_token.labels(self._labels[0]).observe(per_token_s)
            self._judge("tpot", is_kept=is_whole and per_token_s <= self._limits[1])

    def _judge(self, slo: str, *, is_kept: bool) -> None:
        self._metrics.slo_requests.labels(*self._labels, slo, "met" if is_kept else "missed").inc()
