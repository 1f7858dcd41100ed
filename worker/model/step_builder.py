"""A schedule as the arrays of a StepBatch, and the executor that joins the two seams.

Keeps one row a running sequence (`Sequence.row`): its block table and sampling parameters, written when the row
changes hands and when the table grows, so that a decode costs a few list reads and the rest is numpy. A table is
told apart by identity: the KV cache manager gives a sequence a new list whenever it frees the old one.
"""

from __future__ import annotations

import numpy as np

from worker.engine.executor import Schedule
from worker.engine.request import Sequence
from worker.model.runner import IntArray, Runner, StepBatch

SEED_MASK = (1 << 64) - 1


class StepBuilder:
    """`max_seq_tokens` is the most tokens a sequence may have, and sets the width of the persistent tables."""

    def __init__(self, *, max_num_seqs: int, max_seq_tokens: int, block_size: int) -> None:
        self._block_size = block_size
        self._tables = np.zeros((max_num_seqs, -(-max_seq_tokens // block_size)), np.int64)
        self._mirrored: list[list[int]] = [[] for _ in range(max_num_seqs)]
        self._num_written = [0] * max_num_seqs
        self._temperature = np.zeros(max_num_seqs, np.float32)
        self._top_p = np.ones(max_num_seqs, np.float32)
        self._top_k = np.zeros(max_num_seqs, np.int64)
        self._seed = np.zeros(max_num_seqs, np.uint64)
        self._choice = np.zeros(max_num_seqs, np.int64)

    def build(self, schedule: Schedule) -> StepBatch:
        """The arrays are new each time and stay valid."""
        token_ids: list[int] = []
        rows: list[int] = []
        starts: list[int] = []
        for sequence, num_tokens in schedule.chunks.items():
            self._refresh(sequence)
            start = sequence.num_computed_tokens
            token_ids += sequence.token_ids[start : start + num_tokens]
            rows.append(sequence.row)
            starts.append(start)
        return self._assemble(
            schedule, np.array(token_ids, np.int64), np.array(rows, np.int64), np.array(starts, np.int64)
        )

    def _assemble(self, schedule: Schedule, token_ids: IntArray, rows: IntArray, starts: IntArray) -> StepBatch:
        num_seqs = len(rows)
        counts = np.fromiter(schedule.chunks.values(), np.int64, num_seqs)
        query_start = np.zeros(num_seqs + 1, np.int64)
        np.cumsum(counts, out=query_start[1:])
        seq_of_token = np.repeat(np.arange(num_seqs), counts)
        positions = np.arange(len(token_ids)) + (starts - query_start[:-1])[seq_of_token]
        seq_lens = starts + counts
        tables = self._tables[rows, : -(-int(seq_lens.max()) // self._block_size)]
        blocks, offsets = np.divmod(positions, self._block_size)
        sampled_rows = np.array([sequence.row for sequence in schedule.sampled], np.int64)
        seq_of_row = np.zeros(len(self._tables), np.int64)
        seq_of_row[rows] = np.arange(num_seqs)
        sample_seqs = seq_of_row[sampled_rows]
        return StepBatch(
            token_ids=token_ids,
            positions=positions,
            slot_mapping=tables[seq_of_token, blocks] * self._block_size + offsets,
            query_start=query_start,
            seq_lens=seq_lens,
            block_tables=tables,
            sample_seqs=sample_seqs,
            sample_positions=seq_lens[sample_seqs],
            temperature=self._temperature[sampled_rows],
            top_p=self._top_p[sampled_rows],
            top_k=self._top_k[sampled_rows],
            seed=self._seed[sampled_rows],
            choice=self._choice[sampled_rows],
        )

    def _refresh(self, sequence: Sequence) -> None:
        row, table = sequence.row, sequence.block_table
        if self._mirrored[row] is not table:
            self._claim(row, sequence)
        written = self._num_written[row]
        if written != len(table):
            self._tables[row, written : len(table)] = table[written:]
            self._num_written[row] = len(table)

    def _claim(self, row: int, sequence: Sequence) -> None:
        """A row changes hands: stale blocks go, the new owner's parameters come."""
        params = sequence.params
        self._mirrored[row] = sequence.block_table
        self._num_written[row] = 0
        self._tables[row] = 0
        self._temperature[row] = params.temperature
        self._top_p[row] = params.top_p
        self._top_k[row] = params.top_k
        self._seed[row] = params.seed & SEED_MASK
        self._choice[row] = sequence.choice


class RunnerExecutor:
    """The engine's Executor over a Runner."""

    def __init__(self, runner: Runner, builder: StepBuilder) -> None:
        self._runner = runner
        self._builder = builder

    def execute(self, schedule: Schedule) -> list[int]:
        return self._runner.execute(self._builder.build(schedule)).tolist()

    def close(self) -> None:
        self._runner.close()
