"""Dashboards as Grafana reads them, from a few facts: a title, queries with their legends, a unit.

What differs between panels is written in `traffic.py` and `machinery.py`; everything else is decided here, so that all
panels look alike. Two panels a row, in the order given.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

_SOURCE = {"type": "prometheus", "uid": "headrace"}
_WIDTH, _HEIGHT = 12, 8
# Requests are counted by revision, name@digest; queues by name.
OF_MODEL = 'model=~"($model)(@.*)?"'


@dataclass(frozen=True, slots=True)
class Panel:
    """`queries`: PromQL and its legend. `unit` is Grafana's name of one. `about` says what is good and what is not."""

    title: str
    queries: list[tuple[str, str]]
    unit: str = "short"
    about: str = ""
    is_number: bool = False

    def json(self, number: int) -> dict[str, Any]:
        return {
            "id": number + 1,
            "type": "stat" if self.is_number else "timeseries",
            "title": self.title,
            "description": self.about,
            "datasource": _SOURCE,
            "gridPos": {"h": _HEIGHT, "w": _WIDTH, "x": number % 2 * _WIDTH, "y": number // 2 * _HEIGHT},
            "fieldConfig": {"defaults": {"unit": self.unit, "min": 0}, "overrides": []},
            "targets": [
                {"refId": chr(ord("A") + i), "datasource": _SOURCE, "expr": query, "legendFormat": legend}
                for i, (query, legend) in enumerate(self.queries)
            ],
        }


@dataclass(frozen=True, slots=True)
class Dashboard:
    """`variables`: a name, and the query of the values it may take."""

    uid: str
    title: str
    panels: list[Panel]
    variables: dict[str, str] = field(default_factory=dict[str, str])

    def json(self) -> dict[str, Any]:
        return {
            "uid": self.uid,
            "title": self.title,
            "tags": ["headrace"],
            "schemaVersion": 39,
            "editable": False,
            "refresh": "5s",
            "time": {"from": "now-30m", "to": "now"},
            "templating": {"list": [_variable(name, query) for name, query in self.variables.items()]},
            "panels": [panel.json(number) for number, panel in enumerate(self.panels)],
        }


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": query,
        "definition": query,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
    }


def rate(metric: str, by: str, match: str = "") -> str:
    return f"sum by ({by}) (rate({metric}{{{match}}}[$__rate_interval]))"


def quantile(q: float, metric: str, match: str = "", by: str = "") -> str:
    """Of a histogram, all its series together unless `by` some label."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, {rate(f'{metric}_bucket', labels, match)})"


def quantiles(metric: str, match: str = "") -> list[tuple[str, str]]:
    return [(quantile(q, metric, match), f"p{q * 100:g}") for q in (0.5, 0.95, 0.99)]
