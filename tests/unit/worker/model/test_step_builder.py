from __future__ import annotations

import numpy as np

from shared.schemas import SamplingParams
from tests.unit.worker.engine.harness import LetterDecoder
from worker.engine.detokenizer import Detokenizer
from worker.engine.executor import Schedule
from worker.engine.request import Sequence
from worker.model.runner import StepBatch
from worker.model.step_builder import StepBuilder


def make_sequence(row: int, token_ids: list[int], table: list[int], *, computed: int = 0, seed: int = 0) -> Sequence:
    sequence = Sequence(
        request_id="r",
        choice=row,
        arrival=0,
        params=SamplingParams(max_tokens=9, seed=seed, temperature=0.5, top_p=0.25, top_k=7),
        stop_ids=frozenset(),
        detokenizer=Detokenizer(LetterDecoder(), ()),
        token_ids=token_ids,
        num_prompt_tokens=len(token_ids),
    )
    sequence.row, sequence.block_table, sequence.num_computed_tokens = row, table, computed
    return sequence


def make_builder() -> StepBuilder:
    return StepBuilder(max_num_seqs=4, max_seq_tokens=20, block_size=4)


def build(builder: StepBuilder, *sequences: Sequence, budget: int = 100) -> StepBatch:
    schedule = Schedule(budget=budget)
    for sequence in sequences:
        schedule.give(sequence)
    schedule.seal()
    return builder.build(schedule)


def test_a_decode_and_a_prefill_in_one_batch() -> None:
    decode = make_sequence(2, [11, 12, 13, 14, 15, 16], [3, 1], computed=5)
    prefill = make_sequence(0, [21, 22, 23], [2])
    batch = build(make_builder(), decode, prefill)
    assert batch.token_ids.tolist() == [16, 21, 22, 23]
    assert batch.positions.tolist() == [5, 0, 1, 2]
    assert batch.slot_mapping.tolist() == [1 * 4 + 1, 8, 9, 10]
    assert batch.query_start.tolist() == [0, 1, 4]
    assert batch.seq_lens.tolist() == [6, 3]
    assert batch.block_tables.tolist() == [[3, 1], [2, 0]]
    assert batch.sampling is not None
    assert (batch.sample_rows.tolist(), batch.sampling.positions.tolist()) == ([0, 3], [6, 3])


def test_a_chunk_that_does_not_reach_the_end_is_not_sampled() -> None:
    chunk = make_sequence(0, [1, 2, 3, 4, 5, 6], [1, 2])
    batch = build(make_builder(), make_sequence(1, [9], [3]), chunk, budget=4)
    assert batch.token_ids.tolist() == [9, 1, 2, 3]
    assert batch.sample_rows.tolist() == [0]


def test_sampling_parameters_come_with_their_sequence() -> None:
    batch = build(make_builder(), make_sequence(3, [1], [1], seed=-1), make_sequence(1, [1], [2], seed=8))
    sampling = batch.sampling
    assert sampling is not None
    assert (sampling.seed.tolist(), sampling.choice.tolist()) == ([2**64 - 1, 8], [3, 1])
    columns = sampling.temperature, sampling.top_p, sampling.top_k
    assert [column.tolist() for column in columns] == [[0.5] * 2, [0.25] * 2, [7] * 2]


def test_table_that_grew_is_followed() -> None:
    builder = make_builder()
    sequence = make_sequence(0, [1, 2, 3, 4], [5])
    build(builder, sequence)
    sequence.num_computed_tokens = 4
    sequence.token_ids.append(6)
    sequence.block_table.append(9)
    assert build(builder, sequence).slot_mapping.tolist() == [36]


def test_row_that_changed_hands_forgets_the_earlier_table() -> None:
    builder = make_builder()
    build(builder, make_sequence(0, [1] * 12, [1, 2, 3]))
    batch = build(builder, make_sequence(0, [1], [4]), make_sequence(1, [1] * 12, [1, 2, 3]))
    assert batch.block_tables.tolist() == [[4, 0, 0], [1, 2, 3]]


def test_row_that_changed_hands_with_equal_blocks_takes_the_new_parameters() -> None:
    builder = make_builder()
    build(builder, make_sequence(0, [1], [1], seed=5))
    sampling = build(builder, make_sequence(0, [1], [1], seed=6)).sampling
    assert sampling is not None and sampling.seed.tolist() == [6]


def test_dtypes_are_those_of_the_contract() -> None:
    batch = build(make_builder(), make_sequence(0, [1, 2], [1]), budget=1)
    assert batch.sample_rows.shape == (0,)
    for name in ("token_ids", "positions", "slot_mapping", "query_start", "seq_lens", "block_tables"):
        assert getattr(batch, name).dtype == np.int64, name
