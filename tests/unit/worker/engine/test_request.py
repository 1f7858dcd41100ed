from __future__ import annotations

import pytest

from shared.errors import StreamContradiction
from shared.schemas import Prefix, SamplingParams
from worker.engine.detokenizer import Detokenizer
from worker.engine.request import Sequence


class DigitDecoder:
    """Each id is its digits; half a character is always left over."""

    def push(self, token_id: int) -> str:
        return str(token_id)

    def flush(self) -> str:
        return "\ufffd"


def make_sequence(*, max_tokens: int = 3, stop: tuple[str, ...] = (), min_tokens: int = 0) -> Sequence:
    return Sequence(
        request_id="r",
        choice=0,
        arrival=0,
        params=SamplingParams(max_tokens=max_tokens, seed=0, stop=stop, min_tokens=min_tokens),
        stop_ids=frozenset({0}),
        detokenizer=Detokenizer(DigitDecoder(), stop),
        token_ids=[9],
        num_prompt_tokens=1,
    )


def test_last_token_flushes() -> None:
    sequence = make_sequence(max_tokens=2)
    assert [sequence.append(1), sequence.append(2)] == ["1", "2\ufffd"]
    assert sequence.finish_reason == "length"


def test_stop_token_flushes_what_was_held() -> None:
    sequence = make_sequence(stop=("12",))
    assert [sequence.append(1), sequence.append(0)] == ["", "1\ufffd"]
    assert sequence.finish_reason == "stop"


def test_stop_string_at_the_last_token_is_the_reason() -> None:
    sequence = make_sequence(max_tokens=2, stop=("12",))
    assert [sequence.append(1), sequence.append(2)] == ["", ""]
    assert sequence.finish_reason == "stop"


def test_stop_string_completed_by_the_flush_is_the_reason() -> None:
    sequence = make_sequence(max_tokens=1, stop=("\ufffd",))
    assert (sequence.append(1), sequence.finish_reason) == ("1", "stop")


def test_resume_goes_on_where_the_journal_ends() -> None:
    sequence = make_sequence(stop=("23",))
    sequence.resume(Prefix(token_ids=(1, 2), text="1"))
    assert (sequence.num_generated_tokens, sequence.finish_reason) == (2, None)
    assert (sequence.append(3), sequence.finish_reason) == ("", "stop")


def test_journal_that_goes_on_after_an_end_is_refused() -> None:
    with pytest.raises(StreamContradiction):
        make_sequence().resume(Prefix(token_ids=(1, 0, 2), text="1"))


def test_before_min_tokens_nothing_may_stop_it() -> None:
    sequence = make_sequence(max_tokens=5, min_tokens=2, stop=("1",))
    assert (sequence.append(1), sequence.banned_ids) == ("1", {0})
    assert (sequence.append(1), sequence.banned_ids) == ("1", ())
    assert (sequence.append(1), sequence.finish_reason) == ("", "stop")


def test_min_tokens_count_journaled_ones() -> None:
    sequence = make_sequence(max_tokens=5, min_tokens=2, stop=("1",))
    sequence.resume(Prefix((1, 1), "11"))
    assert (sequence.banned_ids, sequence.append(1), sequence.finish_reason) == ((), "", "stop")
