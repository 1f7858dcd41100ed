"""Where load runs leave their figures: one JSON file a run's kind in `loadtest/results/`, the newest only."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path

import orjson

RESULTS = Path(__file__).parent / "results"


def write_results(name: str, figures: Mapping[str, object]) -> Path:
    """The figures with when and on what kind of machine they were measured."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    where = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
    path.write_bytes(orjson.dumps({**where, **figures}, option=orjson.OPT_INDENT_2) + b"\n")
    return path
