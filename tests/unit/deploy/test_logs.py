"""Following, shortening and rotating the children's logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy import logs


def test_a_follower_gives_each_whole_line_once(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("from an earlier run\n")
    follower = logs.LogFollower(path)
    with path.open("a") as file:
        file.write("one\ntw")
        file.flush()
        assert follower.new_lines() == ["one"]
        file.write("o\n")
    assert follower.new_lines() == ["two"]
    assert follower.new_lines() == []


def test_a_follower_waits_for_a_file_that_is_not_there_yet(tmp_path: Path) -> None:
    follower = logs.LogFollower(tmp_path / "later.log")
    assert follower.new_lines() == []
    (tmp_path / "later.log").write_text("here\n")
    assert follower.new_lines() == ["here"]


def test_a_record_is_shortened_to_its_event_and_fields() -> None:
    line = json.dumps({"ts": 1, "level": "info", "event": "model_loaded", "model": "toy", "dur_ms": 12, "reason": None})
    assert logs.summarize(line) == "model loaded (model=toy, dur_ms=12)"


@pytest.mark.parametrize("line", ["Traceback (most recent call last):", "[1, 2]", "{broken", '{"level": "error"}'])
def test_other_lines_pass_as_they_are(line: str) -> None:
    assert logs.summarize(line) == line
    assert not logs.is_trouble(line)


def test_only_errors_are_trouble() -> None:
    assert logs.is_trouble('{"event": "redis_lost", "level": "ERROR"}')
    assert not logs.is_trouble('{"event": "redis_lost", "level": "warning"}')


def test_the_tail_is_the_last_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("".join(f"line {number}\n" for number in range(50)))
    assert logs.tail(path, 2) == ["line 48", "line 49"]
    assert logs.tail(tmp_path / "none.log") == []


def test_only_a_large_log_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.log"
    path.write_text("12345")
    monkeypatch.setattr(logs, "KEPT_BYTES", 5)
    logs.rotate(path)
    assert path.exists()
    monkeypatch.setattr(logs, "KEPT_BYTES", 4)
    logs.rotate(path)
    assert not path.exists() and (tmp_path / "a.log.1").read_text() == "12345"
