"""Prometheus' configuration and rules: valid, each alert fires on what it is for, names only what exists."""

from __future__ import annotations

import yaml

from tests.architecture.source_tree import read
from tests.unit.deploy.observability.promql import told_by, unknown_names

ALERTS = yaml.safe_load(read("deploy/observability/prometheus/rules/alerts.yml"))["groups"][0]["rules"]


def test_the_configuration_is_valid() -> None:
    code, said = told_by("check", "config", "prometheus.yml")
    assert code == 0, said


def test_each_alert_fires_on_what_it_is_for_and_is_quiet_before() -> None:
    code, said = told_by("test", "rules", "tests/alerts.test.yml")
    assert code == 0, said


def test_each_alert_has_such_a_test() -> None:
    tested = {
        case["name"] for case in yaml.safe_load(read("deploy/observability/prometheus/tests/alerts.test.yml"))["tests"]
    }
    assert tested == {alert["alert"] for alert in ALERTS}


def test_each_alert_says_how_bad_what_and_what_to_do() -> None:
    for alert in ALERTS:
        assert alert["labels"]["severity"] in ("critical", "warning")
        assert alert["annotations"]["summary"]
        assert alert["annotations"]["runbook_url"] == f"docs/runbooks/{alert['alert']}.md"


def test_rules_name_only_metrics_that_exist() -> None:
    rules = [read(f"deploy/observability/prometheus/rules/{name}.yml") for name in ("alerts", "recording")]
    assert unknown_names(" ".join(rules)) == set()
