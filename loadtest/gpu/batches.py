"""Steps made by hand: prompts of random tokens in random blocks, and the arrays of any piece of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from worker.model.runner import IntArray, StepBatch

BLOCK_SIZE = 16


class Prompts:
    """`token_ids[i]` has `lengths[i]` tokens. Blocks are in no order, and block 0 is nobody's."""

    def __init__(self, lengths: Sequence[int], *, vocab_size: int, num_blocks: int, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.token_ids: list[IntArray] = [random.integers(0, vocab_size, length) for length in lengths]
        counts = [-(-length // BLOCK_SIZE) for length in lengths]
        free = random.permutation(np.arange(1, num_blocks))
        assert sum(counts) <= len(free), "more prompts than blocks"
        self._tables = np.zeros((len(lengths), max(counts)), np.int64)
        for row, (count, stop) in enumerate(zip(counts, np.cumsum(counts), strict=True)):
            self._tables[row, :count] = free[stop - count : stop]

    def __len__(self) -> int:
        return len(self.token_ids)

    def batch(self, work: Sequence[tuple[int, int, int]]) -> StepBatch:
        """Of each (prompt, start, stop) its tokens from start on. Every one makes a token."""
        counts = np.array([stop - start for _, start, stop in work], np.int64)
        positions = np.concatenate([np.arange(start, stop, dtype=np.int64) for _, start, stop in work])
        tables = self._tables[[prompt for prompt, _, _ in work]]
        table_of_row = np.repeat(tables, counts, axis=0)
        blocks = np.take_along_axis(table_of_row, positions[:, None] // BLOCK_SIZE, 1)[:, 0]
        return StepBatch(
            token_ids=np.concatenate([self.token_ids[prompt][start:stop] for prompt, start, stop in work]),
            positions=positions,
            slot_mapping=blocks * BLOCK_SIZE + positions % BLOCK_SIZE,
            query_start=np.concatenate([[0], np.cumsum(counts)]),
            seq_lens=np.array([stop for _, _, stop in work], np.int64),
            block_tables=tables,
            sample_rows=np.cumsum(counts) - 1,
        )

    def whole(self) -> StepBatch:
        return self.batch([(prompt, 0, len(ids)) for prompt, ids in enumerate(self.token_ids)])

    def last_tokens(self) -> StepBatch:
        return self.batch([(prompt, len(ids) - 1, len(ids)) for prompt, ids in enumerate(self.token_ids)])
