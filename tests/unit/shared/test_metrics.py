"""What is counted of requests, routes and streams, and that a client cannot make series without end."""

from __future__ import annotations

import math
import shutil
import subprocess

import pytest
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient
from prometheus_client import CollectorRegistry, generate_latest

from gateway.http.middleware import install_middleware
from gateway.http.sse import EventStream
from shared.metrics.http import HttpMetrics
from shared.metrics.pace import Pace, PaceMetrics
from shared.observability import GatewayMetrics, WorkerMetrics
from shared.schemas import EndFrame, EventFrame, Frame, Outcome, TokensFrame, Usage

LABELS = ("tiny@1", "default")
# How many values each label may come to in one process that serves five revisions: a route has one method or two.
BOUNDED = {
    "model": 5, "class": 5, "outcome": 5, "reason": 4, "phase": 5, "route": 45, "method": 1.5, "code": 6, "kind": 12,
    "decision": 9, "result": 2, "state": 3, "source": 2, "device": 8, "slo": 2, "command": 35, "service": 1,
    "version": 1, "python": 1,
}  # fmt: skip
MOST_SERIES = {"gateway": 9000, "worker": 1500}


def is_ours(part: object) -> bool:
    return type(part).__module__.startswith("shared.")


def tokens() -> Frame:
    return TokensFrame(0, [1], "a")


def counted(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return registry.get_sample_value(f"headrace_{name}", labels) or 0.0


def pace_of(limits: tuple[float, float], *batches: list[Frame]) -> CollectorRegistry:
    registry = CollectorRegistry()
    pace = Pace(PaceMetrics(registry), LABELS, 0.0, limits)
    for batch in batches:
        pace.heard(batch)
    return registry


def end(outcome: Outcome = Outcome.FINISHED, num_tokens: int = 3) -> list[Frame]:
    return [EndFrame(outcome, Usage(1, num_tokens))]


def test_a_request_is_counted_from_its_wait_to_its_end() -> None:
    registry = pace_of((1e12, 1e12), [EventFrame("taken")], [tokens()], [tokens()], [tokens()], end())
    by_class = {"model": LABELS[0], "class": LABELS[1]}
    for name in ("queue_wait_seconds", "prefill_seconds", "decode_seconds"):
        assert counted(registry, f"{name}_count", **by_class) == 1, name
    assert counted(registry, "inter_token_latency_seconds_count", model=LABELS[0]) == 2
    for slo in ("ttft", "tpot"):
        assert counted(registry, "slo_requests_total", **by_class, slo=slo, result="met") == 1


@pytest.mark.parametrize(("outcome", "missed"), [(Outcome.FAILED, 1), (Outcome.CANCELLED, 0)])
def test_what_never_had_a_token_missed_its_limit_unless_its_client_left(outcome: Outcome, missed: int) -> None:
    registry = pace_of((1e12, 1e12), [EventFrame("taken")], end(outcome))
    labels = {"model": LABELS[0], "class": LABELS[1], "slo": "ttft", "result": "missed"}
    assert counted(registry, "slo_requests_total", **labels) == missed


async def test_paths_and_methods_that_clients_make_up_are_one_series() -> None:
    registry, app = CollectorRegistry(), FastAPI()
    install_middleware(app, 1000, metrics=HttpMetrics(registry))

    @app.get("/things/{name}")
    async def thing(name: str) -> str:
        return name

    async with AsyncClient(transport=ASGITransport(app), base_url="http://test") as client:
        for n in range(20):
            await client.get(f"/things/{n}")
            await client.request(f"MADEUP{n}", f"/nowhere/{n}")
    assert counted(registry, "http_requests_total", route="/things/{name}", method="GET", code="200") == 20
    assert counted(registry, "http_requests_total", route="_unknown", method="_unknown", code="404") == 20
    assert counted(registry, "http_request_duration_seconds_count", route="_unknown") == 20


async def test_bytes_of_streams_are_counted_and_who_reads_is_forgotten() -> None:
    registry, app = CollectorRegistry(), FastAPI()
    install_middleware(app, 1000, metrics=HttpMetrics(registry))
    seen: list[float] = []

    async def events():
        seen.append(counted(registry, "sse_subscribers"))
        yield [b"data: 1\n\n"]

    app.add_api_route("/s", lambda: EventStream(events(), keepalive_s=5, stall_timeout_s=5))
    async with AsyncClient(transport=ASGITransport(app), base_url="http://test") as client:
        await client.get("/s")
    assert (counted(registry, "sse_bytes_total"), counted(registry, "sse_subscribers"), seen) == (9, 0, [1])


@pytest.mark.parametrize(("kind", "service"), [(GatewayMetrics, "gateway"), (WorkerMetrics, "worker")])
def test_labels_are_bounded_and_series_within_their_budget(kind, service: str) -> None:
    metrics = kind(CollectorRegistry())
    parts = [vars(metrics), *(vars(part) for part in vars(metrics).values() if is_ours(part))]
    parts += [part for part in vars(metrics).values() if isinstance(part, dict)]
    declared = [each for part in parts for each in part.values() if hasattr(each, "_labelnames")]
    assert {label for each in declared for label in each._labelnames} - BOUNDED.keys() == set()
    series = {each._name: lines(each) * math.prod(BOUNDED[label] for label in each._labelnames) for each in declared}
    assert sum(series.values()) <= MOST_SERIES[service], sorted(series.items(), key=lambda item: -item[1])[:5]


def lines(metric) -> int:
    """Of one set of labels: a histogram has its buckets, a sum and a number."""
    return len(metric._kwargs["buckets"]) + 3 if "buckets" in metric._kwargs else 1


@pytest.mark.parametrize("kind", [GatewayMetrics, WorkerMetrics])
def test_names_and_help_are_as_prometheus_wants_them(kind) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("PROMTOOL IS NOT INSTALLED (Debian: prometheus): names of metrics are not checked by it")
    registry = CollectorRegistry()
    kind(registry)
    told = subprocess.run([promtool, "check", "metrics"], input=generate_latest(registry), capture_output=True)
    assert (told.returncode, told.stdout + told.stderr) == (0, b"")
