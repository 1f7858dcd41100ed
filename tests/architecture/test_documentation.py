"""Documentation that would otherwise drift: every setting, metric and key is told, every claim has its test."""

from __future__ import annotations

import ast
import re

import pytest
from prometheus_client import CollectorRegistry

from shared.config import ALL_SETTINGS, PREFIX
from tests.architecture.source_tree import ROOT, files, read

TABLE_ROW = re.compile(r"^\| `(HEADRACE_[A-Z0-9_]+)` \| ([^|]*) \|", re.MULTILINE)
KEY_ROW = re.compile(r"^ {4}(hr:\S+|hr:\{m\}:dead, :events, :history)\s", re.MULTILINE)
STATUS = ("works", "planned")


def document(name: str) -> str:
    if not (ROOT / "docs" / name).exists():
        pytest.skip(f"docs/{name} is not written yet")
    return read(f"docs/{name}")


def settings() -> dict[str, set[object]]:
    """Name of the variable -> its defaults (one, unless two kinds of settings differ)."""
    found: dict[str, set[object]] = {}
    for kind in ALL_SETTINGS:
        for name, field in kind.model_fields.items():
            found.setdefault(f"{PREFIX}{name.upper()}", set()).add(field.default)
    return found


def shown(default: object) -> str:
    return "none" if default is None or default == "" else f"`{default}`"


def test_every_setting_is_documented_and_no_other() -> None:
    assert {name for name, _ in TABLE_ROW.findall(document("configuration.md"))} == set(settings())


def test_documented_defaults_are_those_in_force() -> None:
    told = TABLE_ROW.findall(document("configuration.md"))
    allowed = {name: {shown(default) for default in defaults} for name, defaults in settings().items()}
    assert [(name, text) for name, text in told if text.strip() not in allowed.get(name, set())] == []


def test_no_file_names_a_setting_that_does_not_exist() -> None:
    known = set(settings())
    wrong = {
        (path.as_posix(), name)
        for path in files()
        if path.suffix in {".md", ".yml", ".yaml", ".Dockerfile", ".example"} or path.name == "Makefile"
        for name in re.findall(r"HEADRACE_[A-Z0-9_]*[A-Z0-9]", read(path))
        if name not in known
    }
    assert wrong == set()


def metric_names() -> set[str]:
    """As they are exposed: counters with `_total`."""
    observability = pytest.importorskip("shared.observability")
    names: set[str] = set()
    for kind in (observability.GatewayMetrics, observability.WorkerMetrics):
        registry = CollectorRegistry()
        kind(registry)
        names |= {f.name + ("_total" if f.type == "counter" else "") for f in registry.collect()}
    return names


def test_every_metric_is_documented_and_no_other() -> None:
    told = set(re.findall(r"^\| `(headrace_[a-z0-9_]+)`", document("metrics.md"), re.MULTILINE))
    assert told == metric_names()


def documented_keys() -> list[str]:
    """The key patterns of shared/keys.py, as its docstring's table has them."""
    table = ast.get_docstring(ast.parse(read("shared/keys.py")), clean=False) or ""
    return KEY_ROW.findall(table)


def test_every_key_is_in_the_protocol() -> None:
    keys = documented_keys()
    protocol = document("protocol.md")
    lacking = [part for key in keys for part in key.split(", ") if part.removeprefix("hr:") not in protocol]
    assert keys and lacking == []


def status_rows() -> list[tuple[str, str, str]]:
    rows = re.findall(r"^\| (?!what |---)([^|]+) \| ([^|]+) \| ([^|]*) \|$", document("status.md"), re.MULTILINE)
    return [(what.strip(), state.strip(), evidence.strip()) for what, state, evidence in rows]


def test_every_row_of_the_status_is_works_or_planned() -> None:
    rows = status_rows()
    assert rows and [row for row in rows if row[1] not in STATUS] == []


def test_whatever_works_has_a_test_that_exists() -> None:
    unproven = [row for row in status_rows() if row[1] == "works" and not _all_tests_exist(row[2])]
    assert unproven == []


def _all_tests_exist(evidence: str) -> bool:
    named = re.findall(r"`([\w/.-]+\.py)::(\w+)`", evidence)
    return bool(named) and all((ROOT / path).exists() and f"def {test}(" in read(path) for path, test in named)
