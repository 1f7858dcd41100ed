"""The command line: versions, refusals and exit codes. What it starts is tested in tests/integration."""

from __future__ import annotations

import re
import tomllib

import pytest
from typer.testing import CliRunner

from deploy.cli import app
from shared.access.entries import sha256_of

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


def test_a_new_key_is_shown_once_and_only_its_hash_is_to_be_stored() -> None:
    result = runner.invoke(
        app, ["keys", "new", "--tenant", "acme", "--weight", "4", "--limit", "tokens-per-min=1000", "--model", "tiny"]
    )
    (key,) = re.findall(r"^  (hr-\S+)$", result.stdout, re.MULTILINE)
    table = result.stdout[result.stdout.index("[[keys]]") : result.stdout.index("or in Redis")]
    (stored,) = tomllib.loads(table)["keys"]
    assert result.stdout.count(key) == 1
    assert stored == {
        "tenant": "acme", "weight": 4.0, "tokens_per_min": 1000, "models": ["tiny"], "sha256": sha256_of(key),
    }  # fmt: skip
    assert f"HSET hr:keys {sha256_of(key)} '" in result.stdout


@pytest.mark.parametrize(
    ("options", "named"), [(["--tenant", "a b"], "tenant"), (["--tenant", "a", "--limit", "pages=3"], "pages=3")]
)
def test_a_key_that_cannot_be_is_refused_by_name(options: list[str], named: str) -> None:
    result = runner.invoke(app, ["keys", "new", *options])
    assert result.exit_code == 1 and named in result.output
