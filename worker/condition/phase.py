"""Where this worker process stands, told as a gauge, in the log, and to probes over HTTP.

    loading ──▶ warming ──▶ pulling ──▶ draining
                   │         ▲   │
                   └▶ quarantined ◀┘         takes nothing, is probed again after a growing pause

`/health/ready` is 200 while requests are taken, `/health/live` while the engine goes round (or loads); `/metrics` is
beside them, and by setting `/metrics/vllm`. Knows no Redis.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import orjson
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from shared.observability import WorkerMetrics
from worker.condition.vllm_names import vllm_metrics

log = logging.getLogger(__name__)


class Phase(enum.StrEnum):
    LOADING = "loading"
    WARMING = "warming"
    PULLING = "pulling"
    DRAINING = "draining"
    QUARANTINED = "quarantined"


class Standing:
    """`is_alive` says whether the engine goes round. Read from any thread."""

    def __init__(self, metrics: WorkerMetrics, is_alive: Callable[[], bool] = lambda: True) -> None:
        self.metrics = metrics
        self.is_alive = is_alive
        self.phase = Phase.LOADING
        self.why = ""
        self.vllm_model: str | None = None  # the model, as vLLM's names are to tell it; None: they are not asked for
        metrics.phase.labels(Phase.LOADING.value).set(1)

    def enter(self, phase: Phase, why: str = "") -> None:
        """Who drains does nothing else any more."""
        if self.phase is Phase.DRAINING or (phase, why) == (self.phase, self.why):
            return
        self.phase, self.why = phase, why
        log.info("worker_phase", extra={"phase": phase.value, "why": why})
        for each in Phase:
            self.metrics.phase.labels(each.value).set(each is phase)

    def answer(self, path: str) -> tuple[str, str, bytes]:
        """Status line, content type, body."""
        if path == "/metrics":
            return "200 OK", CONTENT_TYPE_LATEST, generate_latest(self.metrics.registry)
        if path == "/metrics/vllm" and self.vllm_model is not None:
            return "200 OK", CONTENT_TYPE_LATEST, vllm_metrics(self.metrics.registry, self.vllm_model)
        good = {"/health/ready": self.phase is Phase.PULLING and self.is_alive(), "/health/live": self.is_alive()}
        if path not in good:
            return "404 Not Found", "application/json", b'{"error":"not found"}'
        body = orjson.dumps({"phase": self.phase.value, "why": self.why})
        return ("200 OK" if good[path] else "503 Service Unavailable"), "application/json", body


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """A line a scrape says nothing."""


def serve_standing(standing: Standing, host: str, port: int) -> int:
    """In a thread of its own, until the process ends. Returns the port (0 asked for any)."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        status, kind, body = standing.answer(environ["PATH_INFO"])
        start_response(status, [("Content-Type", kind)])
        return [body]

    server = make_server(host, port, answer, server_class=_Server, handler_class=_Quiet)
    threading.Thread(target=server.serve_forever, name="standing", daemon=True).start()
    return server.server_port
