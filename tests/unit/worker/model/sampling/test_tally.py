"""Invariant: a tally is a function of the parameters and of all tokens, however they were fed."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shared.schemas import SamplingParams
from worker.model.sampling.tally import TokenTally, is_tallied

TOKENS = st.lists(st.integers(0, 40), min_size=1, max_size=60)


def params_of(**changes: Any) -> SamplingParams:
    return SamplingParams(max_tokens=9, seed=0, **changes)


def as_dict(tally: TokenTally) -> dict[int, tuple[float, float]]:
    ids, factors, terms = tally.entries()
    assert len(set(ids.tolist())) == len(ids)
    return {int(i): (float(factor), float(term)) for i, factor, term in zip(ids, factors, terms, strict=True)}


@given(TOKENS, st.integers(0, 60), st.integers(1, 7), st.sampled_from([1.0, 1.3]))
def test_feeding_piece_by_piece_is_feeding_at_once(
    tokens: list[int], num_prompt: int, stride: int, repetition: float
) -> None:
    num_prompt = min(num_prompt, len(tokens))
    params = params_of(
        presence_penalty=0.7, frequency_penalty=0.2, repetition_penalty=repetition, logit_bias=((3, 5.0), (99, -1.0))
    )
    whole, pieces = TokenTally(params, num_prompt), TokenTally(params, num_prompt)
    whole.feed(tokens)
    for end in range(num_prompt, len(tokens), stride):
        pieces.feed(tokens[:end])
    pieces.feed(tokens)
    assert as_dict(whole) == as_dict(pieces)


def test_prompt_and_answer_are_told_apart() -> None:
    params = params_of(presence_penalty=1.0, frequency_penalty=0.25, repetition_penalty=2.0)
    tally = TokenTally(params, 3)
    tally.feed([5, 5, 6, 6, 6, 7])
    assert as_dict(tally) == {5: (2.0, 0.0), 6: (2.0, -1.5), 7: (2.0, -1.25)}


def test_without_repetition_the_prompt_is_not_looked_at() -> None:
    tally = TokenTally(params_of(presence_penalty=1.0), 3)
    tally.feed([5, 5, 6, 7])
    assert as_dict(tally) == {7: (1.0, -1.0)}


def test_it_grows_with_the_answer() -> None:
    tally = TokenTally(params_of(frequency_penalty=1.0), 0)
    tally.feed(list(range(500)) * 2)
    ids, factors, terms = tally.entries()
    assert ids.tolist() == list(range(500)) and set(terms.tolist()) == {-2.0} and set(factors.tolist()) == {1.0}
    assert (ids.dtype, factors.dtype, terms.dtype) == (np.int64, np.float32, np.float32)


def test_what_changes_no_logit_has_no_tally() -> None:
    assert not is_tallied(params_of(temperature=0.5, min_p=0.1, top_p=0.5, min_tokens=3))
    for changes in ({"presence_penalty": -1.0}, {"repetition_penalty": 0.9}, {"logit_bias": ((1, 1.0),)}):
        assert is_tallied(params_of(**changes))
