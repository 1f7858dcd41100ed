# pyright: basic
"""The kernels in plain PyTorch, row by row, on any device and in any precision: slow, and what the others are held to.

Where there is no Triton the runner's own logic is run and tested with these.
"""

from __future__ import annotations

import torch

from worker.model.cuda.attention import BLOCK_SIZE, BlockPlan, LayerPool
from worker.model.families.model_config import ModelConfig


class PlainKernels:
    """See `Kernels`. `num_tiles` counts the tiles attended to."""

    rows_per_tile = 4

    def __init__(self, config: ModelConfig, pool: torch.Tensor) -> None:
        self.pool = pool
        self.num_tiles = 0
        self._heads, self._scale = config.num_heads, config.attention_scale

    def store(self, pool: LayerPool, qkv: torch.Tensor, slots: torch.Tensor) -> None:
        kv_heads = pool.keys.shape[1]
        block, offset = slots.long() // BLOCK_SIZE, slots.long() % BLOCK_SIZE
        pool.keys[block, :, offset] = qkv[:, self._heads : -kv_heads]
        pool.values[block, :, offset] = qkv[:, -kv_heads:]

    def attend_rows(self, pool: LayerPool, qkv: torch.Tensor, plan: BlockPlan, output: torch.Tensor) -> None:
        for row in plan.singles.tolist():
            output[row] = self._attend(pool, qkv[row, : self._heads], plan, row)

    def attend_tiles(self, pool: LayerPool, qkv: torch.Tensor, plan: BlockPlan, output: torch.Tensor) -> None:
        self.num_tiles += len(plan.tiles)
        for first, stop in plan.tiles.tolist():
            assert 0 < stop - first <= self.rows_per_tile
            for row in range(first, stop):
                output[row] = self._attend(pool, qkv[row, : self._heads], plan, row)

    def _attend(self, pool: LayerPool, queries: torch.Tensor, plan: BlockPlan, row: int) -> torch.Tensor:
        """`queries` [heads, head_dim] -> the same shape."""
        position, start = int(plan.positions[row]), int(plan.starts[row])
        blocks = plan.blocks[start : start + position // BLOCK_SIZE + 1].long()
        first = max(position + 1 - pool.window, 0) if pool.window else 0
        group = self._heads // pool.keys.shape[1]
        keys, values = (
            plane[blocks].transpose(1, 2).flatten(0, 1)[first : position + 1].repeat_interleave(group, 1)
            for plane in (pool.keys, pool.values)
        )  # [tokens, heads, head_dim]
        scores = torch.einsum("hd,thd->ht", queries, keys) * self._scale
        return torch.einsum("ht,thd->hd", scores.softmax(-1), values)
