"""The rows of a step: plain sequences have none, others have theirs, and a mask waits for its thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from shared.schemas import SamplingParams
from tests.unit.worker.engine.harness import LetterDecoder
from worker.engine.detokenizer import Detokenizer
from worker.engine.request import Sequence
from worker.engine.structured import BitArray
from worker.model.sampling.rows import SamplingRows
from worker.model.sampling.table import SamplingTable


class FixedMask:
    failure = None
    is_ended = False

    def __init__(self, *allowed: int) -> None:
        self._allowed = list(allowed)
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def advance(self, token_id: int) -> None: ...

    def mask(self) -> BitArray:
        assert self.may_go_on.wait(10)
        bits = np.zeros(64, np.uint8)
        bits[self._allowed] = 1
        return np.packbits(bits, bitorder="little").view(np.uint32)


@pytest.fixture
def table() -> Iterator[SamplingTable]:
    table = SamplingTable(8)
    yield table
    table.close()


def sequence(table: SamplingTable, row: int, made: int = 0, **changes: Any) -> Sequence:
    """Prompt 1, 2, 3; then `made` tokens, 10 and up."""
    automaton = changes.pop("automaton", None)
    given: dict[str, Any] = {"max_tokens": 9, "seed": row, "temperature": 0.0} | changes
    params = SamplingParams(**given)
    new = Sequence(
        request_id=f"r{row}",
        choice=row,
        arrival=0,
        params=params,
        stop_ids=frozenset({0, 5}),
        detokenizer=Detokenizer(LetterDecoder(), ()),
        token_ids=[1, 2, 3, *range(10, 10 + made)],
        num_prompt_tokens=3,
        automaton=automaton,
    )
    new.row = row
    table.claim(new)
    return new


def rows(table: SamplingTable, *sampled: Sequence) -> SamplingRows:
    built = table.rows(sampled, np.array([len(one.token_ids) for one in sampled]))
    assert built is not None
    return built


def test_a_step_of_plain_sequences_has_no_rows(table: SamplingTable) -> None:
    plain = [sequence(table, row, top_p=0.5, top_k=3, min_p=0.2, n=2, stop=("x",)) for row in range(3)]
    assert table.rows(plain, np.array([3, 3, 3])) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.1},
        {"presence_penalty": 0.1},
        {"logit_bias": ((1, 1.0),)},
        {"min_tokens": 1},
        {"logprobs": 0},
        {"automaton": FixedMask(3)},
    ],
)
def test_whatever_needs_logits_has_a_row(table: SamplingTable, changes: dict[str, Any]) -> None:
    built = rows(table, sequence(table, 0), sequence(table, 5, **changes))
    assert (built.samples.tolist(), built.choice.tolist(), built.seed.tolist()) == ([1], [5], [5])


def test_each_parameter_stands_in_its_own_column(table: SamplingTable) -> None:
    built = rows(table, sequence(table, 2, made=1, temperature=0.5, top_p=0.25, top_k=7, min_p=0.125, logprobs=4))
    columns = (built.positions, built.temperature, built.top_p, built.top_k, built.min_p, built.num_logprobs)
    assert [column.tolist() for column in columns] == [[4], [0.5], [0.25], [7], [0.125], [4]]


def test_a_row_that_changed_hands_forgets_its_tally(table: SamplingTable) -> None:
    first = sequence(table, 0, made=2, frequency_penalty=1.0)
    edits = rows(table, first).edits
    assert edits is not None and edits.ids.tolist() == [10, 11]
    second = sequence(table, 0, made=1, frequency_penalty=1.0)
    edits = rows(table, second).edits
    assert edits is not None and edits.ids.tolist() == [10]


def test_tallies_follow_the_tokens(table: SamplingTable) -> None:
    growing = sequence(table, 0, frequency_penalty=1.0)
    other = sequence(table, 1, presence_penalty=1.0, made=1)
    for token_id in (10, 11, 11):
        growing.token_ids.append(token_id)
        edits = rows(table, growing, other).edits
    assert edits is not None
    assert edits.rows.tolist() == [0, 0, 1]
    assert (edits.ids.tolist(), edits.terms.tolist()) == ([10, 11, 10], [-1.0, -2.0, -1.0])


def test_stop_tokens_are_banned_until_enough_was_made(table: SamplingTable) -> None:
    early, late = sequence(table, 0, made=1, min_tokens=2), sequence(table, 1, made=2, min_tokens=2)
    built = rows(table, early, late)
    assert built.banned_rows is not None and built.banned_ids is not None
    assert sorted(zip(built.banned_rows.tolist(), built.banned_ids.tolist(), strict=True)) == [(0, 0), (0, 5)]
    assert rows(table, late).banned_rows is None


def test_a_step_is_built_before_its_masks_are(table: SamplingTable) -> None:
    slow = FixedMask(3, 40)
    slow.may_go_on.clear()
    built = rows(table, sequence(table, 0, temperature=1.0), sequence(table, 1, automaton=slow))
    assert built.masks is not None and built.masks.rows.tolist() == [1]
    slow.may_go_on.set()
    assert built.masks.wait().tolist() == [[1 << 3, 1 << 8]]


@pytest.mark.parametrize(("allowed", "left"), [((0, 3), [1 << 3, 0]), ((0, 5), [0b100001, 0])])
def test_a_mask_leaves_out_what_is_banned_unless_nothing_is_left(
    table: SamplingTable, allowed: tuple[int, ...], left: list[int]
) -> None:
    built = rows(table, sequence(table, 0, min_tokens=2, automaton=FixedMask(*allowed)))
    assert built.masks is not None and built.masks.wait().tolist() == [left]
    assert built.banned_rows is None
