"""What the tests of dashboards, rules and runbooks share: promtool, and the names that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from shared.observability import GatewayMetrics, WorkerMetrics
from tests.architecture.source_tree import ROOT, read

PROMETHEUS = ROOT / "deploy/observability/prometheus"
_VARIABLES = {"$__rate_interval": "1m", "$model": ".*", "$class": ".*"}


def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("PROMTOOL IS NOT INSTALLED (Debian: prometheus): PromQL and rules are not checked")
    return found


def told_by(*words: str, cwd: Path = PROMETHEUS) -> tuple[int, str]:
    done = subprocess.run([promtool(), *words], cwd=cwd, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def filled(query: str) -> str:
    """With values for Grafana's variables."""
    for name, value in _VARIABLES.items():
        query = query.replace(name, value)
    return query


def syntax_faults(queries: list[str], folder: Path) -> str:
    """'' when all parse: they are given to promtool as recording rules."""
    rules = [{"record": f"q{i}", "expr": filled(query)} for i, query in enumerate(queries)]
    (folder / "rules.json").write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))
    code, said = told_by("check", "rules", "--lint=none", "rules.json", cwd=folder)
    return said if code else ""


def known_names() -> set[str]:
    """Of samples, as they are exposed, and of what is recorded."""
    names = set(re.findall(r"record: (\S+)", read("deploy/observability/prometheus/rules/recording.yml")))
    for kind in (GatewayMetrics, WorkerMetrics):
        registry = CollectorRegistry()
        kind(registry)
        for family in registry.collect():
            endings = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.type, [""])
            names |= {family.name + ending for ending in endings}
    return names


def unknown_names(text: str) -> set[str]:
    return set(re.findall(r"headrace[_:][a-z0-9_:]+", text)) - known_names()
