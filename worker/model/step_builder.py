"""A schedule as the arrays of a StepBatch, and the executor that joins the two seams.

Keeps one row a running sequence (`Sequence.row`): its block table and sampling parameters, written when the row
changes hands and when the table grows, so that a decode costs a few list reads and the rest is numpy. A table is
told apart by identity: the KV cache manager gives a sequence a new list whenever it frees the old one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from worker.engine.adapters import NO_ADAPTER
from worker.engine.executor import Computed, Launched, NewTokens, Schedule
from worker.engine.request import Sequence
from worker.model.runner import AheadRunner, PendingStep, Runner, StepBatch
from worker.model.sampling.rows import IntArray, SamplingRows, StepTokens
from worker.model.sampling.table import SamplingTable
from worker.model.scoring import logprobs_of, scored_rows, scores_of, with_given


class StepBuilder:
    """`max_seq_tokens` is the most tokens a sequence may have, and sets the width of the persistent tables."""

    def __init__(self, *, max_num_seqs: int, max_seq_tokens: int, block_size: int) -> None:
        self._block_size = block_size
        self._tables = np.zeros((max_num_seqs, -(-max_seq_tokens // block_size)), np.int64)
        self._mirrored: list[list[int]] = [[] for _ in range(max_num_seqs)]
        self._num_written = [0] * max_num_seqs
        self._sampling = SamplingTable(max_num_seqs)

    def build(self, schedule: Schedule) -> StepBatch:
        """The arrays are new each time and stay valid."""
        token_ids: list[int] = []
        rows: list[int] = []
        starts: list[int] = []
        mirrored, num_written = self._mirrored, self._num_written
        is_ahead = schedule.follows is not None
        for sequence, num_tokens in schedule.chunks.items():
            row, table, start = sequence.row, sequence.block_table, sequence.num_computed_tokens
            if mirrored[row] is not table or num_written[row] != len(table):
                self._refresh(sequence)
            if is_ahead:
                start = len(sequence.token_ids)
                token_ids.append(0)
            elif num_tokens == 1:
                token_ids.append(sequence.token_ids[start])
            else:
                token_ids += sequence.token_ids[start : start + num_tokens]
                token_ids += schedule.drafts.get(sequence, ())
            rows.append(row)
            starts.append(start)
        return self._assemble(
            schedule, np.array(token_ids, np.int64), np.array(rows, np.int64), np.array(starts, np.int64)
        )

    def close(self) -> None:
        self._sampling.close()

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
        sample_rows = query_start[seq_of_row[sampled_rows] + 1] - 1
        sampling = self._sampling.rows(schedule.sampled, positions[sample_rows] + 1)
        if schedule.drafts:
            sample_rows = _with_drafts(schedule, sample_rows, sampling)
        if schedule.scored:
            prompts = scored_rows(schedule, query_start)
            sampling = with_given(sampling, len(sample_rows), prompts)
            sample_rows = np.concatenate([sample_rows, prompts.rows])
        return StepBatch(
            token_ids=token_ids,
            positions=positions,
            slot_mapping=tables[seq_of_token, blocks] * self._block_size + offsets,
            query_start=query_start,
            seq_lens=seq_lens,
            block_tables=tables,
            sample_rows=sample_rows,
            sampling=sampling,
            adapters=_adapters_of(schedule),
            fed_samples=None if schedule.follows is None else _fed_samples(schedule, schedule.follows),
        )

    def _refresh(self, sequence: Sequence) -> None:
        row, table = sequence.row, sequence.block_table
        if self._mirrored[row] is not table:
            self._claim(row, sequence)
        written = self._num_written[row]
        self._tables[row, written : len(table)] = table[written:]
        self._num_written[row] = len(table)

    def _claim(self, row: int, sequence: Sequence) -> None:
        """A row changes hands: stale blocks go, the new owner's parameters come."""
        self._mirrored[row] = sequence.block_table
        self._num_written[row] = 0
        self._tables[row] = 0
        self._sampling.claim(sequence)


def _adapters_of(schedule: Schedule) -> IntArray | None:
    slots = [sequence.adapter for sequence in schedule.chunks]
    return None if max(slots) == NO_ADAPTER else np.array(slots, np.int64)


def _with_drafts(schedule: Schedule, last_rows: IntArray, sampling: SamplingRows | None) -> IntArray:
    """The rows before those of drafts give tokens as well. `sampling`, of sequences without drafts, follows."""
    drafts = schedule.drafts
    counts = np.fromiter((1 + len(drafts.get(s, ())) for s in schedule.sampled), np.int64, len(last_rows))
    ends: IntArray = np.cumsum(counts)
    if sampling is not None:
        sampling.samples = ends[sampling.samples] - 1
    rows: IntArray = np.arange(int(ends[-1])) + np.repeat(last_rows + 1 - ends, counts)
    return rows


def _fed_samples(schedule: Schedule, before: Schedule) -> IntArray:
    index_of = {sequence: index for index, sequence in enumerate(before.sampled)}
    return np.fromiter((index_of[sequence] for sequence in schedule.chunks), np.int64, len(schedule.chunks))


class RunnerExecutor:
    """The engine's Executor over a Runner."""

    def __init__(self, runner: Runner, builder: StepBuilder) -> None:
        self._runner = runner
        self._ahead = runner if isinstance(runner, AheadRunner) else None
        self._builder = builder

    def launch(self, schedule: Schedule, after: Launched | None = None) -> Launched:
        batch = self._builder.build(schedule)
        if self._ahead is None:
            return Computed(_new_tokens(schedule, self._runner.execute(batch)))
        return _Pending(schedule, self._ahead.launch(batch, after.step if isinstance(after, _Pending) else None))

    def close(self) -> None:
        self._builder.close()
        self._runner.close()


@dataclass(slots=True)
class _Pending:
    """`step` None: it makes no token."""

    schedule: Schedule
    step: PendingStep | None

    def wait(self) -> NewTokens:
        return NewTokens([]) if self.step is None else _new_tokens(self.schedule, self.step.wait())


def _new_tokens(schedule: Schedule, made: StepTokens) -> NewTokens:
    token_ids = made.token_ids.tolist()
    logprobs = {} if made.logprobs is None else logprobs_of(made.logprobs)
    if not schedule.scored:
        return NewTokens(token_ids, logprobs)
    scores = scores_of(schedule, token_ids, logprobs)
    return NewTokens(token_ids[: len(schedule.sampled) + schedule.num_drafted], logprobs, scores)
