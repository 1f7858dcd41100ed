"""Logs and metrics: one JSON line a log event, every metric declared once.

Metrics carry bounded labels only: never a request id, a tenant or a key. A process builds its set once, on a
registry of its own, and hands it to what counts.
"""

from __future__ import annotations

import logging
import sys
import time
from contextvars import ContextVar
from typing import Any

import orjson
from prometheus_client import CollectorRegistry, Counter

from shared.metrics.fleet import FleetMetrics
from shared.metrics.http import HttpMetrics
from shared.metrics.maker import DURATION_BUCKETS, TTFT_BUCKETS, Maker
from shared.metrics.pace import PaceMetrics
from shared.metrics.process import ProcessMetrics

_PART_BUCKETS = (
    0.00001,
    0.00003,
    0.0001,
    0.0003,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.2,
    0.4,
    0.8,
    1.5,
    3,
    6,
)
_SIZE_BUCKETS = (0, *(2**power for power in range(13)))
_STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3, 6)


class GatewayMetrics:
    """What a gateway counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = Maker(registry)
        self.registry = registry
        self.process = ProcessMetrics(registry, "gateway")
        self.http, self.pace, self.fleet = HttpMetrics(registry), PaceMetrics(registry), FleetMetrics(registry)
        self.admission_decisions = make.counter(
            "admission_decisions_total", "Requests offered to the queue, by decision", "model", "class", "decision"
        )
        self.fallbacks = make.counter(
            "fallbacks_total", "Requests that a model got in another's place", "model", "reason"
        )
        self.requests = make.counter("requests_total", "Requests ended, by outcome", "model", "class", "outcome")
        self.requests_in_flight = make.gauge("requests_in_flight", "Requests this gateway follows", "model")
        self.time_to_first_token = make.histogram(
            "time_to_first_token_seconds", "From receipt to the first token", TTFT_BUCKETS, "model", "class"
        )
        self.request_duration = make.histogram(
            "request_duration_seconds", "From receipt to the end", DURATION_BUCKETS, "model", "class", "outcome"
        )
        self.token_gaps = make.counter("token_gap_total", "Messages that did not continue what was delivered", "kind")
        self.token_recoveries = make.counter("token_recovery_total", "Repairs from the journal, by result", "result")
        self.redis_up = make.gauge("redis_up", "1 when the last call to Redis was answered")
        self.redis_reconnects = make.counter("redis_reconnects_total", "Times the subscription was made anew")
        self.reaped = _reaped(make)
        self.faults_injected = make.counter(
            "faults_injected_total", "Failpoints that struck, by point and action", "kind"
        )
        self.queue_depth = make.gauge("queue_depth", "Requests waiting", "model")
        self.queue_tokens = make.gauge("queue_tokens", "Prompt tokens waiting", "model")
        self.queue_in_flight = make.gauge("queue_in_flight", "Requests running", "model")
        self.model_paused = make.gauge("model_paused", "1 when an operator has paused a revision of it", "model")
        self.workers = make.gauge("workers", "Workers whose lease has not run out", "model")
        self.workers_wanted = make.gauge("workers_wanted", "Workers the work and the settings ask for", "model")
        self.worker_slots = make.gauge(
            "worker_slots", "Sequences live workers have room for, and run", "model", "state"
        )
        self.queue_oldest = make.gauge("queue_oldest_seconds", "How long the oldest waits", "model")
        self.queue_expected_tokens = make.gauge("queue_expected_tokens", "Tokens waiting, with answers", "model")
        self.queue_drain = make.gauge("queue_drain_requests_per_second", "Requests that finish", "model")
        self.queue_drain_tokens = make.gauge("queue_drain_tokens_per_second", "Tokens of answers that finish", "model")
        self.batches_running = make.gauge("batches_running", "Batches this gateway computes")
        self.batch_lines = make.counter("batch_lines_total", "Lines of batches answered, by outcome", "outcome")
        for outcome in ("completed", "failed"):
            self.batch_lines.labels(outcome)  # 0, not absent: an alert is on its rate
        self.batch_lines_in_flight = make.gauge("batch_lines_in_flight", "Lines of batches on their way here")
        self.batch_refusals = make.counter("batch_refusals_total", "Times a line was to come later, by code", "code")


class WorkerMetrics:
    """What a worker counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = Maker(registry)
        self.registry = registry
        self.process = ProcessMetrics(registry, "worker")
        self.redis_up = make.gauge("redis_up", "1 when the last call to Redis was answered")
        self.deliveries = make.counter("deliveries_total", "Requests taken, by kind", "model", "kind")
        self.requests_running = make.gauge("requests_running", "Sequences in the running batch")
        self.requests_waiting = make.gauge("requests_waiting", "Sequences held and not running")
        self.kv_blocks = make.gauge("kv_blocks", "KV blocks, by state", "state")
        self.kv_cache_usage = make.gauge("kv_cache_usage_ratio", "KV blocks used, of all")
        self.preemptions = make.counter(
            "preemptions_total", "Sequences that yielded their KV blocks, by reason", "reason"
        )
        self.recomputed_tokens = make.counter("recomputed_tokens_total", "Tokens computed again after a preemption")
        self.prefix_cache_queries = make.counter("prefix_cache_queries_total", "Tokens looked for in the prefix cache")
        self.prefix_cache_hits = make.counter("prefix_cache_hits_total", "Tokens found in the prefix cache")
        self.draft_tokens = make.counter("draft_tokens_total", "Draft tokens verified")
        self.accepted_tokens = make.counter("accepted_tokens_total", "Draft tokens that were right")
        self.generation_tokens = make.counter("generation_tokens_total", "Tokens made")
        self.prompt_tokens = make.counter(
            "prompt_tokens_total", "Prompt tokens begun, by where their KV came from", "source"
        )
        self.step_duration = make.histogram("step_duration_seconds", "One engine step, by part", _PART_BUCKETS, "phase")
        self.step_tokens = make.histogram("step_tokens", "Tokens computed in a step, by kind", _SIZE_BUCKETS, "kind")
        self.batch_size = make.histogram("batch_size", "Sequences in a step", _SIZE_BUCKETS)
        self.emit_duration = make.histogram("emit_seconds", "One emit, with its round trip", _STEP_BUCKETS)
        self.phase = make.gauge("worker_phase", "1 for the phase this worker is in", "phase")
        self.quarantines = make.counter(
            "worker_quarantines_total", "Times this worker stopped taking as it kept failing"
        )
        self.engine_failures = make.counter(
            "engine_failures_total", "Failures that may be this worker's, by kind", "kind"
        )
        self.gpu = {
            f"gpu_{name}": make.gauge(f"gpu_{name}", f"{words}, as its driver says", "device")
            for name, words in {
                "utilization_ratio": "Part of the time in which the GPU computed",
                "memory_used_bytes": "Memory of the GPU in use, by whatever process",
                "memory_total_bytes": "Memory of the GPU",
                "power_watts": "Power the GPU draws",
                "temperature_celsius": "Temperature of the GPU",
                "slowed_power_cap": "1 while its power limit slows the GPU",
                "slowed_hardware": "1 while its hardware slows the GPU",
                "slowed_thermal_software": "1 while the driver slows the GPU for its heat",
                "slowed_thermal_hardware": "1 while the hardware slows the GPU for its heat",
                "slowed_power_brake": "1 while its power supply slows the GPU",
            }.items()
        }
        self.fenced = make.counter("fenced_total", "Requests dropped because another owner has them")
        self.reaped = _reaped(make)
        self.faults_injected = make.counter(
            "faults_injected_total", "Failpoints that struck, by point and action", "kind"
        )


def _reaped(make: Maker) -> Counter:
    """By kind, from 0 on: the first of a kind would be no increase."""
    reaped = make.counter("reaped_total", "What reaping moved or ended, by kind", "kind")
    for kind in ("requeued", "dead", "expired", "orphans"):
        reaped.labels(kind)
    return reaped


# Of the HTTP request that is being worked on: the id of every log line that names no other.
current_request_id: ContextVar[str] = ContextVar("current_request_id", default="")


class JsonFormatter(logging.Formatter):
    """One JSON object a line; fields come by `extra`, and `request_id` from what is being worked on."""

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
        if "request_id" not in line and (request_id := current_request_id.get()):
            line["request_id"] = request_id
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
