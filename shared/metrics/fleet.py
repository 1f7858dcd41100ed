"""What any gateway reads of a model's queue: how old the oldest is, who is dead, who has not been heard of for long.

The same in every gateway: take `max` over gateways, not `sum`.
"""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry

from shared.metrics.maker import Maker


class FleetMetrics:
    """One a gateway process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = Maker(registry)
        self.queue_oldest_age = make.gauge(
            "queue_oldest_age_seconds", "How long the oldest has waited, or run", "model", "class", "state"
        )
        self.dead_letters = make.gauge("dead_letters", "Letters of the dead that are kept", "model")
        self.worker_heartbeat_age = make.gauge(
            "worker_heartbeat_age_seconds", "Since the registered worker heard of longest ago was heard of", "model"
        )

    def tell_ages(self, model: str, ages_s: Mapping[tuple[str, str], float]) -> None:
        """`ages_s`: by class and state."""
        for (service_class, state), seconds in ages_s.items():
            self.queue_oldest_age.labels(model, service_class, state).set(seconds)
