"""Automata: allowed tokens only, an end that is one, and failures that end a request and nothing else."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from llguidance import LLTokenizer

from shared.errors import StreamContradiction, UnsupportedParameter
from shared.schemas import Constraint, ConstraintKind, EndFrame, Frame, Outcome, Prefix, SamplingParams, TokensFrame
from shared.text.grammar import tokenizer_of
from tests.unit.worker.engine.harness import LetterDecoder, Machine, answer, answers, drain, make_request, start
from worker.engine.detokenizer import Detokenizer
from worker.engine.request import Sequence, Vocabulary
from worker.engine.structured import Automata, Automaton, refuse_constraints

EOS = 256
PIECES = [*(bytes([value]) for value in range(256)), b"<end>", b'{"', b'":', b"12", b"\xc3\xa9"]


class ByteDecoder:
    """Latin-1, so that every byte is a character at once."""

    def push(self, token_id: int) -> str:
        return "" if token_id == EOS else PIECES[token_id].decode("latin-1")

    def flush(self) -> str:
        return ""


def vocabulary() -> LLTokenizer:
    return tokenizer_of(PIECES, [EOS], [EOS])


def automata() -> Automata:
    return Automata(vocabulary, len(PIECES))


def regex(text: str) -> Constraint:
    return Constraint(ConstraintKind.REGEX, text)


def schema(value: Any) -> Constraint:
    return Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(value))


def allowed(automaton: Automaton) -> set[int]:
    bits = np.unpackbits(automaton.mask().view(np.uint8), bitorder="little")
    assert not bits[len(PIECES) :].any() or automaton.failure
    return set(np.flatnonzero(bits[: len(PIECES)]).tolist())


def make_sequence(constraint: Constraint, *, max_tokens: int = 20, **changes: Any) -> Sequence:
    params = SamplingParams(max_tokens=max_tokens, seed=0, **changes)
    return Sequence(
        request_id="r",
        choice=0,
        arrival=0,
        params=params,
        stop_ids=frozenset(() if params.ignore_eos else (EOS,)),
        detokenizer=Detokenizer(ByteDecoder(), params.stop),
        token_ids=[9],
        num_prompt_tokens=1,
        automaton=automata().open(constraint),
    )


def test_only_what_can_follow_is_allowed() -> None:
    automaton = automata().open(regex("a[bc]+"))
    assert allowed(automaton) == {ord("a")}
    automaton.advance(ord("a"))
    assert allowed(automaton) == {ord("b"), ord("c")}
    automaton.advance(ord("b"))
    assert allowed(automaton) == {ord("b"), ord("c"), EOS} and not automaton.is_ended


def test_tokens_of_several_bytes_are_allowed_where_all_of_them_are() -> None:
    automaton = automata().open(schema({"type": "object", "additionalProperties": {"const": 12}}))
    assert {ord("{"), PIECES.index(b'{"')} <= allowed(automaton)
    for token in (b'{"', b"a", b'":'):
        automaton.advance(PIECES.index(token))
    assert {ord("1"), ord(" "), PIECES.index(b"12")} <= allowed(automaton) and ord("2") not in allowed(automaton)


def test_the_end_comes_with_the_last_token() -> None:
    sequence = make_sequence(schema({"const": 12}))
    assert [sequence.append(ord("1")), sequence.finish_reason] == ["1", None]
    assert [sequence.append(ord("2")), sequence.finish_reason] == ["2", None] or sequence.finish_reason == "stop"


def test_what_nothing_can_follow_is_ended_without_a_stop_token() -> None:
    sequence = make_sequence(regex("ab"), ignore_eos=True, min_tokens=9)
    assert [sequence.append(ord("a")), sequence.append(ord("b")), sequence.finish_reason] == ["a", "b", "stop"]


def test_a_stop_token_ends_what_might_go_on() -> None:
    sequence = make_sequence(regex("a+"))
    assert [sequence.append(ord("a")), sequence.append(EOS), sequence.finish_reason] == ["a", "", "stop"]
    assert sequence.failure is None


def test_ignoring_eos_it_still_ends_an_answer_that_is_complete() -> None:
    sequence = make_sequence(regex("a+"), ignore_eos=True)
    sequence.append(ord("a"))
    sequence.append(EOS)
    assert sequence.finish_reason == "stop"


def test_max_tokens_cuts_it_short() -> None:
    sequence = make_sequence(regex("a{9}"), max_tokens=2)
    assert [sequence.append(ord("a")), sequence.append(ord("a")), sequence.finish_reason] == ["a", "a", "length"]


def test_a_stop_string_of_the_client_ends_it_before() -> None:
    sequence = make_sequence(regex("abc+"), stop=("bc",))
    assert "".join(sequence.append(ord(letter)) for letter in "abc") == "a"
    assert sequence.finish_reason == "stop"


def test_journaled_tokens_leave_the_automaton_where_new_ones_do() -> None:
    made = make_sequence(regex("ab[cd]e"))
    text = made.append(ord("a")) + made.append(ord("b"))
    resumed = make_sequence(regex("ab[cd]e"))
    resumed.resume(Prefix(tuple(made.token_ids[1:]), text))
    assert resumed.automaton is not None and allowed(resumed.automaton) == {ord("c"), ord("d")}


def test_a_journal_that_does_not_fit_is_a_contradiction() -> None:
    with pytest.raises(StreamContradiction, match="do not fit"):
        make_sequence(regex("ab")).resume(Prefix((ord("x"),), "x"))


def test_a_failure_is_for_good_and_allows_everything() -> None:
    automaton = automata().open(regex("ab"))
    automaton.advance(ord("x"))
    assert automaton.failure is not None and not automaton.is_ended
    assert allowed(automaton) == set(range(len(PIECES)))
    automaton.advance(ord("a"))
    assert "held to the format" in automaton.failure


def test_a_vocabulary_the_library_cannot_read_is_a_failure_of_the_request() -> None:
    def broken() -> LLTokenizer:
        raise ValueError("odd vocabulary")

    automaton = Automata(broken, 8).open(regex("a"))
    assert automaton.mask().tolist() == [0xFFFF_FFFF]
    assert automaton.failure is not None and "vocabulary" in automaton.failure


def test_choices_of_one_constraint_are_apart() -> None:
    of_model = automata()
    first, second = of_model.open(regex("ab")), of_model.open(regex("ab"))
    first.advance(ord("a"))
    assert (allowed(first), allowed(second)) == ({ord("b")}, {ord("a")})


def test_an_engine_without_automata_refuses() -> None:
    with pytest.raises(UnsupportedParameter):
        refuse_constraints(regex("a"))


class Failing:
    """Fails with the `after`th token."""

    is_ended = False

    def __init__(self, after: int) -> None:
        self.failure: str | None = None
        self._left = after

    def advance(self, token_id: int) -> None:
        self._left -= 1
        self.failure = "too much" if self._left <= 0 else None

    def mask(self) -> Any:
        return np.full(4, 0xFFFF_FFFF, np.uint32)


def test_a_request_that_fails_ends_alone_and_at_once() -> None:
    machine = Machine(vocabulary=Vocabulary(lambda _: LetterDecoder(), open_automaton=lambda _: Failing(3)))
    start(machine.engine, make_request("bad", n=2, constraint=regex("a")))
    start(machine.engine, make_request("good"))
    journals = drain(machine.engine)
    end = journals["bad"][-1]
    assert isinstance(end, EndFrame) and end.error is not None
    assert (end.outcome, end.error.code, end.error.message) == (Outcome.FAILED, "constraint_failed", "too much")
    assert answer(journals["good"]).finish_reason == "length"
    assert machine.engine.load().kv_blocks_used == 0


def test_logprobs_stand_beside_their_tokens_and_a_stop_token_has_none() -> None:
    machine = Machine(eos_probability=0.2)
    start(machine.engine, make_request(logprobs=2, max_tokens=50, n=3))
    frames = drain(machine.engine)["r"]
    choices, _ = answers(frames, 3)
    assert any(choice.finish_reason == "stop" for choice in choices)
    for frame in tokens_of(frames):
        is_stop = frame.token_ids == [0]
        assert (frame.logprobs is None) == is_stop
        assert is_stop or (frame.logprobs is not None and len(frame.logprobs[0].top) == 2)


def tokens_of(frames: list[Frame]) -> list[TokensFrame]:
    return [frame for frame in frames if isinstance(frame, TokensFrame) and frame.token_ids]
