from __future__ import annotations

import random

import pytest

from shared.errors import StreamContradiction
from worker.engine.detokenizer import Detokenizer


class PieceDecoder:
    """Ids index into pieces; what the last piece leaves open comes with flush."""

    def __init__(self, pieces: list[str], rest: str = "") -> None:
        self.pieces = pieces
        self.rest = rest

    def push(self, token_id: int) -> str:
        return self.pieces[token_id]

    def flush(self) -> str:
        return self.rest


def released(pieces: list[str], stops: list[str], rest: str = "") -> list[str]:
    """What each piece releases, then the flush, until a stop string completes."""
    detokenizer = Detokenizer(PieceDecoder(pieces, rest), stops)
    texts: list[str] = []
    for token_id in range(len(pieces)):
        texts.append(detokenizer.push(token_id))
        if detokenizer.is_stopped:
            return texts
    return [*texts, detokenizer.flush()]


@pytest.mark.parametrize(
    ("pieces", "stops", "expected"),
    [
        (["a", "b"], [], ["a", "b", ""]),
        (["a", "b"], [""], ["a", "b", ""]),
        (["x", "E", "N", "D", "y"], ["END"], ["x", "", "", ""]),
        (["x", "E", "N", "o"], ["END"], ["x", "", "", "ENo", ""]),
        (["x", "EE", "ND"], ["END"], ["x", "E", ""]),
        (["fooENDbar"], ["END"], ["foo"]),
        (["a", "E"], ["END"], ["a", "", "E"]),
        (["abc"], ["c", "abcd", "b"], ["a"]),
        (["xab"], ["b", "ab"], ["x"]),
        (["aab", "aac"], ["aabaac"], ["", ""]),
        (["aabaab", "aac"], ["aabaac"], ["aab", ""]),
    ],
)
def test_text_is_held_only_while_it_may_become_a_stop_string(
    pieces: list[str], stops: list[str], expected: list[str]
) -> None:
    assert released(pieces, stops) == expected


def test_flush_releases_what_the_decoder_still_has() -> None:
    assert released(["a", ""], ["END"], rest="\ufffd") == ["a", "", "\ufffd"]


def test_stop_string_completed_by_the_flush_counts() -> None:
    assert released(["a", "EN"], ["END"], rest="D") == ["a", "", ""]


def test_text_does_not_depend_on_token_boundaries() -> None:
    rng = random.Random(1)
    for _ in range(300):
        text = "".join(rng.choices("ab", k=12))
        stops = ["".join(rng.choices("ab", k=rng.randint(2, 5))) for _ in range(rng.randint(0, 3))]
        pieces: list[str] = []
        while sum(map(len, pieces)) < len(text):
            at = sum(map(len, pieces))
            pieces.append(text[at : at + rng.randint(0, 4)])
        assert "".join(released(pieces, stops)) == "".join(released(list(text), stops))


def resumed(pieces: list[str], stops: list[str], journaled: str) -> Detokenizer:
    detokenizer = Detokenizer(PieceDecoder(pieces), stops)
    replayed = "".join(detokenizer.push(token_id) for token_id in range(len(pieces)))
    detokenizer.resume(replayed, journaled)
    return detokenizer


def test_resume_holds_what_the_journal_has_not_released() -> None:
    assert resumed(["x", "E", "N"], ["END"], "x").flush() == "EN"


def test_resume_owes_text_the_journal_lacks() -> None:
    assert resumed(["ab", "cd"], [], "ab").flush() == "cd"


def test_resume_does_not_repeat_text_the_journal_released_early() -> None:
    assert resumed(["x", "E"], ["END"], "xE").flush() == ""


def test_resume_refuses_a_journal_that_says_something_else() -> None:
    with pytest.raises(StreamContradiction):
        resumed(["ab"], [], "ax")


def test_text_of_tokens_that_may_not_stop_is_not_searched_and_not_held() -> None:
    detokenizer = Detokenizer(PieceDecoder(["EN", "D", "E", "ND"]), ("END",))
    assert [detokenizer.push(0, may_stop=False), detokenizer.push(1, may_stop=False)] == ["EN", "D"]
    assert [detokenizer.push(2), detokenizer.push(3), detokenizer.is_stopped] == ["", "", True]


def test_a_stop_string_begun_by_tokens_that_may_not_stop_is_none() -> None:
    detokenizer = Detokenizer(PieceDecoder(["E", "ND"]), ("END",))
    assert [detokenizer.push(0, may_stop=False), detokenizer.push(1), detokenizer.is_stopped] == ["E", "ND", False]
