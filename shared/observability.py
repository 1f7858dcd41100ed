"""Logs and metrics: one JSON line a log event, every metric declared once.

Metrics carry bounded labels only: never a request id, a tenant or a key. A process builds its set once, on a
registry of its own, and hands it to what counts.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import orjson
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.2, 0.25, 0.45, 0.5, 0.75, 1, 2, 2.5, 5, 7.5, 10, 20, 40, 80, 160
)  # fmt: skip
_STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3, 6)
_DURATION_BUCKETS = tuple(0.01 * 2**power for power in range(18))


class GatewayMetrics:
    """What a gateway counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, words: str, *labels: str) -> Counter:
            return Counter(f"headrace_{name}", words, labels, registry=registry)

        def gauge(name: str, words: str, *labels: str) -> Gauge:
            return Gauge(f"headrace_{name}", words, labels, registry=registry)

        self.registry = registry
        self.admission_decisions = counter(
            "admission_decisions_total", "Requests offered to the queue, by decision", "model", "class", "decision"
        )
        self.requests = counter("requests_total", "Requests ended, by outcome", "model", "class", "outcome")
        self.requests_in_flight = gauge("requests_in_flight", "Requests this gateway follows", "model")
        self.time_to_first_token = Histogram(
            "headrace_time_to_first_token_seconds", "From receipt to the first token",
            ("model", "class"), buckets=_TTFT_BUCKETS, registry=registry,
        )  # fmt: skip
        self.request_duration = Histogram(
            "headrace_request_duration_seconds", "From receipt to the end",
            ("model", "class", "outcome"), buckets=_DURATION_BUCKETS, registry=registry,
        )  # fmt: skip
        self.token_gaps = counter("token_gap_total", "Messages that did not continue what was delivered", "kind")
        self.token_recoveries = counter("token_recovery_total", "Repairs from the journal, by result", "result")
        self.redis_up = gauge("redis_up", "1 when the last call to Redis was answered")
        self.redis_reconnects = counter("redis_reconnects_total", "Times the subscription was made anew")
        self.reaped = counter("reaped_total", "What reaping moved or ended, by kind", "kind")
        self.faults_injected = counter("faults_injected_total", "Failpoints that struck, by point and action", "kind")
        self.queue_depth = gauge("queue_depth", "Requests waiting", "model")
        self.queue_tokens = gauge("queue_tokens", "Prompt tokens waiting", "model")
        self.queue_in_flight = gauge("queue_in_flight", "Requests running", "model")
        self.workers = gauge("workers", "Workers whose lease has not run out", "model")


class WorkerMetrics:
    """What a worker counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, words: str, *labels: str) -> Counter:
            return Counter(f"headrace_{name}", words, labels, registry=registry)

        def gauge(name: str, words: str, *labels: str) -> Gauge:
            return Gauge(f"headrace_{name}", words, labels, registry=registry)

        self.registry = registry
        self.deliveries = counter("deliveries_total", "Requests taken, by kind", "model", "kind")
        self.requests_running = gauge("requests_running", "Sequences in the running batch")
        self.requests_waiting = gauge("requests_waiting", "Sequences held and not running")
        self.kv_blocks = gauge("kv_blocks", "KV blocks, by state", "state")
        self.kv_cache_usage = gauge("kv_cache_usage_ratio", "KV blocks used, of all")
        self.preemptions = gauge("preemptions", "Preemptions since the start")
        self.generation_tokens = counter("generation_tokens_total", "Tokens made")
        self.prompt_tokens = counter("prompt_tokens_total", "Prompt tokens taken")
        self.step_duration = Histogram(
            "headrace_step_duration_seconds", "One engine step", buckets=_STEP_BUCKETS, registry=registry
        )
        self.emit_duration = Histogram(
            "headrace_emit_seconds", "One emit, with its round trip", buckets=_STEP_BUCKETS, registry=registry
        )
        self.fenced = counter("fenced_total", "Requests dropped because another owner has them")
        self.reaped = counter("reaped_total", "What reaping moved or ended, by kind", "kind")
        self.faults_injected = counter("faults_injected_total", "Failpoints that struck, by point and action", "kind")


class JsonFormatter(logging.Formatter):
    """One JSON object a line; fields come by `extra`."""

    def __init__(self, service: str, instance: str) -> None:
        super().__init__()
        self._constant = {"service": service, "instance": instance}
        self._standard = set(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **self._constant,
            **{name: value for name, value in record.__dict__.items() if name not in self._standard},
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def configure_logging(service: str, instance: str, level: str) -> None:
    """JSON lines on stdout for this process; uvicorn's own loggers join."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter(service, instance))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
