"""Which recorded step serves a batch, what padding adds, and where arrays lie on the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.model.cuda.parts import CPU
from worker.model.cuda.graphs import DecodeGraphs, RerunRecorder, graph_sizes, padded, padding_only
from worker.model.cuda.inputs import StepInputs
from worker.model.runner import StepBatch


def decode(num_seqs: int) -> StepBatch:
    ids = np.arange(num_seqs) + 1
    tables = np.stack([ids, ids + 100], 1)
    return StepBatch(ids, ids + 16, tables[:, 1] * 16, np.arange(num_seqs + 1), ids + 17, tables, ids - 1)


@pytest.mark.parametrize(
    ("max_num_seqs", "sizes"),
    [(1, [1]), (3, [1, 2, 4]), (8, [1, 2, 4, 8]), (9, [1, 2, 4, 8, 16]), (40, [1, 2, 4, 8, 16, 32, 48])],
)
def test_sizes_are_small_ones_then_multiples_of_16(max_num_seqs: int, sizes: list[int]) -> None:
    assert graph_sizes(max_num_seqs) == sizes


def test_a_step_takes_the_least_graph_that_holds_it() -> None:
    graphs = DecodeGraphs(RerunRecorder(), 40)
    chosen = {num_seqs: graphs.size_for(decode(num_seqs)) for num_seqs in (1, 3, 8, 9, 17, 48, 49)}
    assert chosen == {1: 1, 3: 4, 8: 8, 9: 16, 17: 32, 48: 48, 49: None}


def test_a_step_with_a_chunk_is_not_replayed() -> None:
    batch = decode(4)
    batch.token_ids = np.arange(5)
    assert DecodeGraphs(RerunRecorder(), 40).size_for(batch) is None


def test_graphs_are_recorded_largest_first_and_replayed_by_size() -> None:
    ran: list[int] = []
    graphs = DecodeGraphs(RerunRecorder(), 16)
    graphs.record(lambda size: lambda: ran.append(size))
    assert ran == [16, 8, 4, 2, 1]
    graphs.replay(4)
    assert ran[-1] == 4


def test_padding_is_sequences_of_one_token_in_the_scratch_block() -> None:
    batch = padded(decode(3), 8)
    assert batch.slot_mapping.tolist()[3:] == batch.positions.tolist()[3:] == batch.token_ids.tolist()[3:] == [0] * 5
    assert batch.seq_lens.tolist()[3:] == [1] * 5
    assert batch.query_start.tolist() == list(range(9))
    assert not batch.block_tables[3:].any() and batch.block_tables[:3].all()
    assert batch.sample_rows.tolist() == [0, 1, 2]
    assert padding_only(4).slot_mapping.tolist() == [0] * 4


def test_arrays_of_the_same_sizes_lie_at_the_same_places() -> None:
    inputs = StepInputs(400, CPU)
    seen: list[list[torch.Tensor]] = []
    for step in range(3):
        inputs.begin()
        seen.append(
            [inputs.put(np.full(5, step)), inputs.put(np.full((2, 2), -step)), inputs.put_last(np.arange(step))]
        )
        inputs.send()
    assert len({tuple(view.data_ptr() for view in views) for views in seen}) == 1
    assert all(view.data_ptr() % 16 == seen[0][0].data_ptr() % 16 for view in seen[0])
    assert seen[0][0].tolist() == [2] * 5 and seen[0][1].tolist() == [[-2, -2]] * 2
    assert seen[0][2][:2].tolist() == [0, 1]


def test_the_next_step_is_put_together_beside_the_one_that_was_sent() -> None:
    inputs = StepInputs(64, CPU)
    inputs.begin()
    view = inputs.put(np.array([7]))
    leaving = inputs._hosts[inputs._turn]  # from where a GPU may still copy
    inputs.send()
    inputs.begin()
    inputs.put(np.array([8]))
    assert view.tolist() == [7]
    assert leaving[0] == 7


def test_a_step_beyond_the_limits_is_noticed() -> None:
    inputs = StepInputs(8, CPU)
    inputs.begin()
    with pytest.raises(AssertionError, match="larger than the limits"):
        inputs.put(np.arange(9))
