"""Attention over a paged KV pool by kernels that read block tables: no copies, no padding, one plan for all layers.

    pool    [layer, 2, block, kv_head, 16, head_dim]    keys, then values; a head's block is one page
    plan    rows of one token each, and tiles of the rows of longer chunks

Where bits must not hang on the batch (`is_invariant`) every row is attended alone. Knows no kernel: which ones, it is
given. Source: vLLM (PagedAttention).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from worker.model.cuda.inputs import StepInputs
from worker.model.families.model_config import ModelConfig
from worker.model.runner import IntArray, StepBatch

BLOCK_SIZE = 16


@dataclass(slots=True)
class LayerPool:
    """`keys`, `values` [block, kv_head, 16, head_dim]. A row sees at most `window` tokens; 0: all."""

    keys: torch.Tensor
    values: torch.Tensor
    window: int


@dataclass(slots=True)
class BlockPlan:
    """int32, on the device. Row r's sequence has its blocks at `blocks[starts[r]:]`."""

    positions: torch.Tensor  # [rows]
    slots: torch.Tensor  # [rows]
    starts: torch.Tensor  # [rows]
    singles: torch.Tensor  # [num_singles], rows attended alone
    tiles: torch.Tensor  # [num_tiles, 2], first row and the one after the last
    blocks: torch.Tensor  # [all that there is room for]


class Kernels(Protocol):
    """`qkv` [rows, heads + 2 * kv_heads, head_dim], rotated; `output` [rows, heads, head_dim]."""

    rows_per_tile: int

    def store(self, pool: LayerPool, qkv: torch.Tensor, slots: torch.Tensor) -> None:
        """Put each row's keys and values into its slot."""
        ...

    def attend_rows(self, pool: LayerPool, qkv: torch.Tensor, plan: BlockPlan, output: torch.Tensor) -> None:
        """For `plan.singles`. A row's bits are a function of its query, its position and its sequence's KV."""
        ...

    def attend_tiles(self, pool: LayerPool, qkv: torch.Tensor, plan: BlockPlan, output: torch.Tensor) -> None:
        """For the rows of `plan.tiles`."""
        ...


class BlockAttention:
    """Owns the KV pool of every layer. See `Attention`; what `plan` returns is valid until the next step is sent."""

    def __init__(
        self, config: ModelConfig, kernels: Kernels, inputs: StepInputs, pool: torch.Tensor, *, is_invariant: bool
    ) -> None:
        """`pool` as `new_pool` makes it."""
        self._heads = config.num_heads
        self._kernels = kernels
        self._inputs = inputs
        self._is_invariant = is_invariant
        self._layers = [
            LayerPool(pool[layer, 0], pool[layer, 1], window or 0) for layer, window in enumerate(config.layer_windows)
        ]

    @staticmethod
    def block_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
        """Of one block in all layers."""
        return config.num_layers * 2 * config.num_kv_heads * BLOCK_SIZE * config.head_dim * dtype.itemsize

    @staticmethod
    def new_pool(config: ModelConfig, num_blocks: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        shape = (config.num_layers, 2, num_blocks, config.num_kv_heads, BLOCK_SIZE, config.head_dim)
        return torch.zeros(shape, device=device, dtype=dtype)

    def plan(self, batch: StepBatch) -> BlockPlan:
        """Puts into the step's inputs: for as many sequences of one row, always at the same places."""
        num_rows = np.diff(batch.query_start)  # [num_seqs]
        num_blocks = -(-batch.seq_lens // BLOCK_SIZE)
        starts = np.cumsum(num_blocks) - num_blocks
        width = batch.block_tables.shape[1]
        is_used = np.less(np.arange(width, dtype=np.int64), num_blocks[:, None])
        singles, tiles = self._split(batch.query_start, num_rows)
        put = self._inputs.put
        return BlockPlan(
            positions=put(batch.positions),
            slots=put(batch.slot_mapping),
            starts=put(np.repeat(starts, num_rows)),
            singles=put(singles),
            tiles=put(tiles),
            blocks=self._inputs.put_last(batch.block_tables[is_used]),
        )

    def attend(self, layer: int, qkv: torch.Tensor, plan: BlockPlan) -> torch.Tensor:
        """Store the step's keys and values, then attend. Returns [rows, heads * head_dim]."""
        pool, kernels = self._layers[layer], self._kernels
        kernels.store(pool, qkv, plan.slots)
        output = qkv.new_empty(qkv.shape[0], self._heads, qkv.shape[2])
        if len(plan.singles):
            kernels.attend_rows(pool, qkv, plan, output)
        if len(plan.tiles):
            kernels.attend_tiles(pool, qkv, plan, output)
        return output.view(qkv.shape[0], -1)

    def _split(self, query_start: IntArray, num_rows: IntArray) -> tuple[IntArray, IntArray]:
        """Rows that are attended alone, and tiles of the others."""
        if self._is_invariant or query_start[-1] == len(num_rows):
            return np.arange(int(query_start[-1]), dtype=np.int64), np.empty((0, 2), np.int64)
        size = self._kernels.rows_per_tile
        chunks = np.flatnonzero(num_rows > 1)
        num_tiles = -(-num_rows[chunks] // size)
        within = np.arange(int(num_tiles.sum()), dtype=np.int64)
        within -= np.repeat(np.cumsum(num_tiles) - num_tiles, num_tiles)  # of the chunk's tiles
        first = np.repeat(query_start[chunks], num_tiles) + within * size
        stop = np.minimum(first + size, np.repeat(query_start[chunks + 1], num_tiles))
        return query_start[:-1][num_rows == 1], np.stack([first, stop], 1)
