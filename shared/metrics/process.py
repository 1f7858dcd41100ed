"""What both services tell of themselves: which build they are, and how Redis answers them."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import CollectorRegistry, Gauge

from shared.metrics.maker import CALL_BUCKETS, Maker


class ProcessMetrics:
    """One a process. `commands` are the names of our scripts: there are some thirty, and no client names one."""

    def __init__(self, registry: CollectorRegistry, service: str) -> None:
        make = Maker(registry)
        self.redis_command_duration = make.histogram(
            "redis_command_duration_seconds", "One script, with its round trip", CALL_BUCKETS, "command"
        )
        build = make.gauge("build_info", "1; what this process is in its labels", "service", "version", "python")
        build.labels(service, _version(), platform.python_version()).set(1)

    def on_command(self, redis_up: Gauge) -> CommandTold:
        """For `Scripts`: each call is timed, and says whether Redis was there."""
        return CommandTold(self, redis_up)


class CommandTold:
    """Called with a script's name, its seconds, and whether it was answered."""

    def __init__(self, metrics: ProcessMetrics, redis_up: Gauge) -> None:
        self._duration, self._up = metrics.redis_command_duration, redis_up

    def __call__(self, command: str, seconds: float, is_up: bool) -> None:
        self._duration.labels(command).observe(seconds)
        self._up.set(is_up)


def _version() -> str:
    try:
        return version("headrace")
    except PackageNotFoundError:  # run from a source tree that was not installed
        return "unknown"
