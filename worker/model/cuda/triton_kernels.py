# pyright: basic, reportIndexIssue=false
"""The Triton kernels with one model's sizes: see kernels.py for what each does.

Tiles are as large as registers and shared memory hold when compiled for 8.0 and 9.0. A split is at least 256 tokens and
there are at most 64, so that the parts of a row have bounded room. Room for parts is kept up to `_MAX_PART_BYTES`; more
rows go in turns.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from worker.model.cuda import kernels
from worker.model.cuda.attention import BLOCK_SIZE, BlockPlan, LayerPool
from worker.model.families.model_config import ModelConfig

_MIN_SPLIT, _MAX_SPLITS = 256, 64
_MAX_PART_BYTES = 256 << 20
_ROWS_ALIGNED = 16  # a turn's rows begin at a multiple of 16 bytes, or the kernel would be compiled again
_PROGRAMS_A_PROCESSOR = 4
_MIN_QUERIES = 16  # the least rows of a product on tensor cores
# Stated, so that bits do not hang on the default of a Triton version.
_COMPILED: dict[str, Any] = {"enable_fp_fusion": True}


class TritonKernels:
    """See `Kernels`. `pool` is that of the attention. `num_processors`: of its device; a row's splits are spread over
    more of them the fewer rows there are."""

    def __init__(
        self, config: ModelConfig, pool: torch.Tensor, *, context_length: int, max_rows: int, num_processors: int
    ) -> None:
        width = max(16, _next_power_of_2(config.head_dim))
        self._tile = _tile_size(width, pool.dtype.itemsize)
        self._split = max(_MIN_SPLIT, _next_power_of_2(-(-context_length // _MAX_SPLITS)))
        self._max_splits = -(-context_length // self._split)
        self._num_programs = _PROGRAMS_A_PROCESSOR * num_processors
        group = _next_power_of_2(config.num_heads // config.num_kv_heads)
        self._queries = max(_MIN_QUERIES, group)
        self._queries_of_tile = max(self._tile, group)
        self.rows_per_tile = self._queries_of_tile // group
        self._group = group
        self._heads = {"HEADS": config.num_heads, "DIM": config.head_dim, "DIM_PAD": width}
        self._paged = {"KV_HEADS": config.num_kv_heads, "BLOCK": BLOCK_SIZE}
        self._scale = config.attention_scale * math.log2(math.e)
        self._kv_heads = config.num_kv_heads
        part_bytes = config.num_heads * self._max_splits * (config.head_dim + 2) * 4
        room = _MAX_PART_BYTES // part_bytes // _ROWS_ALIGNED * _ROWS_ALIGNED
        self._max_rows = max(_ROWS_ALIGNED, min(-(-max_rows // _ROWS_ALIGNED) * _ROWS_ALIGNED, room))
        shape = (self._max_rows, config.num_heads, self._max_splits)
        self._parts = torch.zeros(*shape, config.head_dim, device=pool.device)
        self._weights = torch.zeros(*shape, 2, device=pool.device)

    def store(self, pool: LayerPool, qkv: torch.Tensor, slots: torch.Tensor) -> None:
        grid = (qkv.shape[0], self._kv_heads)
        kernels.store_kernel[grid](
            qkv, pool.keys, pool.values, slots, **self._heads, **self._paged, num_warps=1, **_COMPILED
        )

    def attend_rows(self, pool: LayerPool, qkv: torch.Tensor, plan: BlockPlan, output: torch.Tensor) -> None:
        for first in range(0, len(plan.singles), self._max_rows):
            self._attend(pool, qkv, plan, plan.singles[first : first + self._max_rows], output)

    def attend_tiles(self, pool: LayerPool, qkv: torch.Tensor, plan: BlockPlan, output: torch.Tensor) -> None:
        kernels.tiles_kernel[(len(plan.tiles), self._kv_heads)](
            qkv,
            pool.keys,
            pool.values,
            plan.tiles,
            plan.positions,
            plan.starts,
            plan.blocks,
            output,
            SCALE=self._scale,
            WINDOW=pool.window,
            TILE=self._tile,
            M=self._queries_of_tile,
            GROUP_PAD=self._group,
            **self._heads,
            **self._paged,
            num_warps=4,
            num_stages=2,
            **_COMPILED,
        )

    def _attend(
        self, pool: LayerPool, qkv: torch.Tensor, plan: BlockPlan, rows: torch.Tensor, output: torch.Tensor
    ) -> None:
        splits = {"WINDOW": pool.window, "SPLIT": self._split, "MAX_SPLITS": self._max_splits}
        lanes = max(1, min(self._max_splits, self._num_programs // (len(rows) * self._kv_heads)))
        kernels.rows_kernel[(len(rows), self._kv_heads, lanes)](
            qkv,
            pool.keys,
            pool.values,
            rows,
            plan.positions,
            plan.starts,
            plan.blocks,
            self._parts,
            self._weights,
            SCALE=self._scale,
            TILE=self._tile,
            M=self._queries,
            **splits,
            **self._heads,
            **self._paged,
            num_warps=4,
            num_stages=2,
            **_COMPILED,
        )
        kernels.merge_kernel[(len(rows), self._heads["HEADS"])](
            self._parts, self._weights, rows, plan.positions, output, **splits, **self._heads, num_warps=2, **_COMPILED
        )


def _tile_size(width: int, value_bytes: int) -> int:
    """Tokens and queries of a tile, for heads so wide. Wider values go through plain fp32 arithmetic."""
    if value_bytes == 2:
        return 64 if width <= 128 else 32
    return 32 if width <= 64 else 16


def _next_power_of_2(value: int) -> int:
    return 1 << (value - 1).bit_length()
