"""Dashboards: what is in git is what the module makes, each query parses and names only metrics that exist."""

from __future__ import annotations

from pathlib import Path

from deploy.observability.dashboards import DASHBOARDS, FOLDER, written
from tests.unit.deploy.observability.promql import syntax_faults, unknown_names

QUERIES = [query for each in DASHBOARDS for panel in each.panels for query, _ in panel.queries]


def test_the_files_are_what_the_module_makes() -> None:
    assert {path.name: path.read_text("utf-8") for path in FOLDER.glob("*.json")} == written()


def test_each_query_parses(tmp_path: Path) -> None:
    assert syntax_faults(QUERIES, tmp_path) == ""


def test_a_query_that_does_not_parse_is_noticed(tmp_path: Path) -> None:
    assert "parse error" in syntax_faults(["sum(rate(up[5m])"], tmp_path)


def test_queries_and_variables_name_only_metrics_that_exist() -> None:
    variables = [query for each in DASHBOARDS for query in each.variables.values()]
    assert unknown_names(" ".join(QUERIES + variables)) == set()
    assert unknown_names("headrace_nothing_total") == {"headrace_nothing_total"}
