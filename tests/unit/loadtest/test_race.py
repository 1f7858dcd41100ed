"""The race: figures from times, and contestants that answer, end or do not start."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from loadtest.race import field
from loadtest.race.field import Contestant, Entry, Run, read_field
from loadtest.race.table import percentile

ECHO = """
from loadtest.race.contestants.frame import serve

def run(prompts, max_tokens, clock):
    for i, prompt in enumerate(prompts):
        for _ in range(max_tokens):
            clock.note(i, [prompt[-1]])

serve(run, said="hello")
"""


def entry(program: str) -> Entry:
    return Entry("one", 8, [sys.executable, "-c", program])


def test_figures_are_of_the_times_tokens_came() -> None:
    run = Run(times=[[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]], tokens=[[], []])
    assert run.tokens_per_s == pytest.approx(6 / 4)
    assert run.decode_per_s == pytest.approx(3 / 2)  # after 2.0, when the last one had its first
    assert run.ttfts == [1.0, 2.0]
    assert run.itls == [1.0] * 4
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0


def test_a_contestant_answers_each_job(tmp_path: Path) -> None:
    contestant = Contestant(entry(ECHO), tmp_path / "log")
    assert contestant.greeting == {"said": "hello"}
    assert contestant.run([[1, 2], [3]], 2).tokens == [[2, 2], [3, 3]]
    assert [len(times) for times in contestant.run([[4]], 3).times] == [3]
    contestant.stop()


def test_one_that_cannot_say_logprobs_says_so(tmp_path: Path) -> None:
    contestant = Contestant(entry(ECHO), tmp_path / "log")
    assert contestant.score([1, 2, 3]) is None
    contestant.stop()


def test_one_that_never_answers_is_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contestant = Contestant(entry(ECHO.replace("clock.note(i, [prompt[-1]])", "input()")), tmp_path / "log")
    monkeypatch.setattr(field, "ANSWER_S", 0.1)
    with pytest.raises(RuntimeError, match="one ended"):
        contestant.run([[1]], 1)


def test_one_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no weights here"):
        Contestant(entry("raise SystemExit('no weights here')"), tmp_path / "log")


def test_a_field_is_read_from_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "field.toml").write_text(
        '[[contestant]]\nname = "x"\npython = "envs/x/bin/python"\nmodule = "m"\narguments = ["a"]\nbits = 4\n'
    )
    (peer,) = read_field(tmp_path / "field.toml")
    assert peer.argv == [str(tmp_path / "envs/x/bin/python"), "-m", "m", "a"]
    assert peer.cwd == tmp_path
