"""What runs real clients: a session's steps are told and read, and the page says what the record does."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from loadtest.clients import record, steps
from loadtest.clients.environments import CannotInstall, node_environment
from loadtest.clients.record import BEGIN, END, PAGE, Ran, read_record, table
from loadtest.clients.roster import ROSTER
from loadtest.clients.steps import ModelUnable, Step, expect, read_steps, step


def test_a_step_that_fails_is_told_and_the_next_one_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    with step("first"):
        expect(1 > 2, "one is\nless")
    with step("second"):
        raise ModelUnable("it cannot")
    with step("third"):
        expect(2 > 1, "")
    told = read_steps("noise\n." + capsys.readouterr().out + "{}")
    assert told == [Step("first", "failed", "AssertionError: one is less"), Step("second", "model", "it cannot"),
                    Step("third", "ok")]  # fmt: skip


def test_a_row_names_what_did_not_go_well() -> None:
    done = [Step("a", "ok"), Step("b", "model", "x|y"), Step("c", "failed", "z")]
    rows = table([Ran("n", ("p==1",), "does", done), Ran("m", ("q==2",), "it", [], not_run="no node")])
    assert "| `p==1` | does | 1 of 3 | b: the small model (x y); c: failed (z) |" in rows
    assert "| `q==2` | it | not run | no node |" in rows


def test_a_run_of_some_keeps_the_record_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr("loadtest.results.RESULTS", tmp_path)
    first, second = (Ran(client.name, client.packages, "", [Step("s", "ok")]) for client in ROSTER[:2])
    record.write_record([], [second])
    record.write_record(read_record(), [first])
    assert read_record() == [first, second]


def test_the_pages_table_is_the_records() -> None:
    written = PAGE.read_text().split(BEGIN)[1].split(END)[0]
    assert written.strip() == table(read_record())


@pytest.mark.parametrize("client", ROSTER, ids=lambda client: client.name)
def test_each_client_has_its_session(client: object) -> None:
    session = getattr(client, "session", "")
    if session.endswith(".mjs"):
        assert (Path(steps.__file__).parent / "node" / session).exists()
    else:
        assert importlib.util.find_spec(session) is not None


def test_where_there_is_no_node_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotInstall, match="node and npm"):
        node_environment(tmp_path, ("openai@1",))
