"""How metrics are made: on one registry, under this project's prefix; and the buckets that several share.

SLO thresholds are edges of buckets, so that the share of requests within one can be read exactly. A label's value that
a client could choose freely is told as `UNKNOWN` unless it is one we know.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

UNKNOWN = "_unknown"
TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.2, 0.25, 0.45, 0.5, 0.75, 1, 2, 2.5, 5, 7.5, 10, 20, 40, 80, 160
)  # fmt: skip
ITL_BUCKETS = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.03, 0.04, 0.05, 0.075, 0.08, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
    0.75, 1, 2.5, 5, 10, 20,
)  # fmt: skip
DURATION_BUCKETS = tuple(0.01 * 2**power for power in range(18))
CALL_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class Maker:
    """Makes metrics on one registry, under this project's prefix."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str, words: str, *labels: str) -> Counter:
        return Counter(f"headrace_{name}", words, labels, registry=self._registry)

    def gauge(self, name: str, words: str, *labels: str) -> Gauge:
        return Gauge(f"headrace_{name}", words, labels, registry=self._registry)

    def histogram(self, name: str, words: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"headrace_{name}", words, labels, registry=self._registry, buckets=buckets)
