"""The command line: versions, refusals and exit codes. What it starts is tested in tests/integration."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from deploy.cli import app

runner = CliRunner()


def test_the_version_is_told() -> None:
    result = runner.invoke(app, ["--version"])
    assert result.exit_code == 0 and result.stdout.startswith("headrace ")


@pytest.mark.parametrize("command", ["up", "gateway"])
def test_a_bad_setting_is_refused_by_name(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_PORT", "port")
    result = runner.invoke(app, [command])
    assert result.exit_code == 2 and "HEADRACE_PORT" in result.output


def test_a_setting_nobody_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_PROT", "8000")
    result = runner.invoke(app, ["up"])
    assert result.exit_code == 2 and "HEADRACE_PROT" in result.output
