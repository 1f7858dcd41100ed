"""`/metrics/vllm`: what a worker counts, told under the names others know; off unless asked for."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from shared.observability import WorkerMetrics
from worker.condition.phase import Standing


def test_the_same_figures_under_vllms_names() -> None:
    metrics = WorkerMetrics(CollectorRegistry())
    standing = Standing(metrics)
    standing.vllm_model = "tiny"
    metrics.requests_running.set(3)
    metrics.preemptions.labels("blocks").inc(2)
    metrics.preemptions.labels("displaced").inc(5)
    status, _, body = standing.answer("/metrics/vllm")
    assert status == "200 OK"
    assert b'vllm:num_requests_running{model_name="tiny"} 3.0' in body
    assert b'vllm:num_preemptions_total{model_name="tiny"} 7.0' in body
    assert b"headrace" not in body


def test_it_is_not_there_unless_asked_for() -> None:
    assert Standing(WorkerMetrics(CollectorRegistry())).answer("/metrics/vllm")[0] == "404 Not Found"
