"""What a gateway counts of HTTP: requests by route template, and the streams it writes.

A path that no route serves, and a method that HTTP does not know, are told as `_unknown`: clients choose both.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from shared.metrics.maker import DURATION_BUCKETS, UNKNOWN, Maker

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
CLIENT_LEFT = 499  # as nginx says it: the client left before it had an answer


class HttpMetrics:
    """One a gateway process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = Maker(registry)
        self.requests = make.counter(
            "http_requests_total", "HTTP requests that are over, by route template", "route", "method", "code"
        )
        self.request_duration = make.histogram(
            "http_request_duration_seconds", "From a request's head to its end", DURATION_BUCKETS, "route"
        )
        self.sse_subscribers = make.gauge("sse_subscribers", "Streams of events being written")
        self.sse_bytes = make.counter("sse_bytes_total", "Bytes of events written to streams")
        self.slow_client_drops = make.counter("slow_client_drops_total", "Streams cut off as their client took nothing")

    def count(self, route: str, method: str, status: int, seconds: float) -> None:
        """`route`: its template, '' where none matched. `status` 0: the client left before it had an answer."""
        route = route or UNKNOWN
        method = method if method in _METHODS else UNKNOWN
        self.requests.labels(route, method, str(status or CLIENT_LEFT)).inc()
        self.request_duration.labels(route).observe(seconds)
