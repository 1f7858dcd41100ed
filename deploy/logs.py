"""Children's log files: kept apart per child, followed for progress, shown when a child fails.

The services write one JSON object a line (ts, level, event, ...); anything else is passed on as it is. Knows no
process and prints nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

QUIET_FIELDS = frozenset(
    {"ts", "level", "event", "service", "version", "instance", "worker", "gateway", "logger", "exc", "exception"}
)
SHOWN_FIELDS = 4
TAIL_BYTES = 64_000
KEPT_BYTES = 20_000_000


class LogFollower:
    """Reads what was added to a file since the last call. Half a line is left for the next call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0

    def new_lines(self) -> list[str]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                added = file.read()
        except FileNotFoundError:
            return []
        complete = added.rfind(b"\n") + 1
        self._offset += complete
        return added[:complete].decode("utf-8", "replace").splitlines()


def tail(path: Path, count: int = 20) -> list[str]:
    """The last `count` lines of a file; none when there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return file.read().decode("utf-8", "replace").splitlines()[-count:]
    except FileNotFoundError:
        return []


def rotate(path: Path) -> None:
    """Before a run: a log that grew large becomes `<name>.1`, which replaces the one before it."""
    if path.exists() and path.stat().st_size > KEPT_BYTES:
        path.replace(path.with_name(path.name + ".1"))


def parse(line: str) -> dict[str, Any] | None:
    """The record of a log line, or None when the line is not one of ours."""
    if not line.startswith("{"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return cast("dict[str, Any]", record) if isinstance(record, dict) and "event" in record else None


def summarize(line: str) -> str:
    """`model loaded (model=smollm2, dur_ms=812)` from a record; other lines as they are."""
    record = parse(line)
    if record is None:
        return line.strip()
    fields = [f"{key}={value}" for key, value in record.items() if key not in QUIET_FIELDS and value is not None]
    detail = f" ({', '.join(fields[:SHOWN_FIELDS])})" if fields else ""
    return str(record["event"]).replace("_", " ") + detail


def is_trouble(line: str) -> bool:
    """Whether a line must be seen also after start-up: an error record."""
    record = parse(line)
    return record is not None and str(record.get("level", "")).lower() in {"error", "critical"}
