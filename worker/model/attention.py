"""Attention over a paged KV pool, in plain PyTorch.

    pool    [layer, 2 * kv_head, block, 16 * head_dim]     keys of every head, then values of every head
    slot    block * 16 + offset                            a token's place in each [block, 16] plane

A head's block is 16 * head_dim contiguous values, so gathering copies whole blocks (`index_select` into a
reused buffer; gathering by a block table index was 5 to 8 times slower) and leaves each sequence's keys and
values contiguous. Sequences with one new token are padded together by like length and use two batched
products; a sequence with more uses the fused kernel. Padding reads block 0 and is masked: the pool starts as
zeros and must stay finite. A layer with a window reads the blocks that its window touches; the older ones stay in
the pool. Source: vLLM (PagedAttention).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from worker.model.families.model_config import ModelConfig
from worker.model.runner import IntArray, StepBatch

BLOCK_SIZE = 16
_ALIKE_BLOCKS = 8  # sequences this short are padded together: a second group would cost more than the padding


@dataclass(slots=True)
class DecodeGroup:
    """Sequences with one new token each, padded to `num_blocks`. `rows` None: all rows of the step, in order."""

    rows: torch.Tensor | None  # [group] int64
    blocks: torch.Tensor  # [group * num_blocks] int64
    bias: torch.Tensor  # [kv_heads * group, 1, num_blocks * 16], 0 or -inf, dtype of the model


@dataclass(slots=True)
class Chunk:
    """Rows `start:stop` are the last of a sequence, and see some of its last `num_seen` tokens. `mask` None: the
    sequence has no others, and no window cuts them."""

    start: int
    stop: int
    num_seen: int
    blocks: torch.Tensor  # [ceil(num_seen / 16)] int64
    mask: torch.Tensor | None  # [rows, num_seen] bool, True where a row sees a token


@dataclass(slots=True)
class View:
    """Who attends to what in the layers of one window."""

    decodes: list[DecodeGroup]
    chunks: list[Chunk]


@dataclass(slots=True)
class AttentionPlan:
    """One step's attention; made once, used by every layer. `views` is by window, as the runner counts them."""

    slots: torch.Tensor  # [rows] int64
    views: list[View]


class PagedAttention:
    """Owns the KV pool of every layer. One step at a time; not for two threads."""

    def __init__(self, config: ModelConfig, num_blocks: int, device: torch.device, dtype: torch.dtype) -> None:
        self._heads = config.num_heads
        self._kv_heads = config.num_kv_heads
        self._head_dim = config.head_dim
        self._scale = config.attention_scale
        self._windows = list(dict.fromkeys(config.layer_windows))  # each once
        self._view_of_layer = [self._windows.index(window) for window in config.layer_windows]
        shape = (config.num_layers, 2 * config.num_kv_heads, num_blocks, BLOCK_SIZE * config.head_dim)
        self._pool = _zeros(math.prod(shape), device, dtype).view(shape)
        self._gathered = self._pool.new_empty(0)

    @staticmethod
    def block_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
        """Of one block in all layers."""
        return config.num_layers * 2 * config.num_kv_heads * BLOCK_SIZE * config.head_dim * dtype.itemsize

    def clear(self, blocks: list[int]) -> None:
        """Zeros, as in a new pool."""
        self._pool[:, :, blocks] = 0

    def plan(self, batch: StepBatch) -> AttentionPlan:
        views = [self._view(batch, window) for window in self._windows]
        return AttentionPlan(slots=self._to_device(batch.slot_mapping), views=views)

    def attend(self, layer: int, qkv: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
        """Store the step's keys and values, then attend.

        `qkv` [rows, heads + 2 * kv_heads, head_dim], rotated. Returns [rows, heads * head_dim].
        """
        pool = self._pool[layer]
        new = qkv[:, self._heads :].transpose(0, 1)  # [2 * kv_heads, rows, head_dim]
        pool.view(2 * self._kv_heads, -1, self._head_dim).index_copy_(1, plan.slots, new)
        view = plan.views[self._view_of_layer[layer]]
        if not view.chunks and len(view.decodes) == 1:
            return self._decode(pool, qkv[:, : self._heads], view.decodes[0])
        output = qkv.new_empty(qkv.shape[0], self._heads * self._head_dim)
        for group in view.decodes:
            assert group.rows is not None
            queries = qkv[:, : self._heads].index_select(0, group.rows)
            output.index_copy_(0, group.rows, self._decode(pool, queries, group))
        for chunk in view.chunks:
            output[chunk.start : chunk.stop] = self._prefill(pool, qkv[chunk.start : chunk.stop], chunk)
        return output

    def _decode(self, pool: torch.Tensor, queries: torch.Tensor, group: DecodeGroup) -> torch.Tensor:
        """`queries` [group, heads, head_dim] -> [group, heads * head_dim]."""
        size = queries.shape[0]
        keys, values = self._gather(pool, group.blocks, size)  # [kv_heads * group, tokens, head_dim]
        by_head = queries.reshape(size, self._kv_heads, -1, self._head_dim).transpose(0, 1)
        by_head = by_head.reshape(self._kv_heads * size, -1, self._head_dim)  # [.., queries a kv_head, head_dim]
        scores = torch.baddbmm(group.bias, by_head, keys.transpose(1, 2), alpha=self._scale)
        output = torch.bmm(torch.softmax(scores, -1), values)
        return output.view(self._kv_heads, size, -1).transpose(0, 1).reshape(size, -1)

    def _prefill(self, pool: torch.Tensor, qkv: torch.Tensor, chunk: Chunk) -> torch.Tensor:
        """`qkv` [chunk, heads + 2 * kv_heads, head_dim] -> [chunk, heads * head_dim]."""
        by_head = qkv.transpose(0, 1)
        if chunk.mask is None:
            keys, values = by_head[self._heads : -self._kv_heads], by_head[-self._kv_heads :]
        else:
            keys, values = self._gather(pool, chunk.blocks, 1)  # [kv_heads, tokens, head_dim]
            keys, values = keys[:, : chunk.num_seen], values[:, : chunk.num_seen]
        output = F.scaled_dot_product_attention(
            by_head[None, : self._heads],
            keys[None],
            values[None],
            attn_mask=chunk.mask,
            is_causal=chunk.mask is None,
            scale=self._scale,
            enable_gqa=self._heads != self._kv_heads,
        )
        return output[0].transpose(0, 1).reshape(qkv.shape[0], -1)

    def _gather(self, pool: torch.Tensor, blocks: torch.Tensor, num_seqs: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, each [kv_heads * num_seqs, tokens, head_dim]; valid until the next call."""
        shape = (2 * self._kv_heads, blocks.numel(), BLOCK_SIZE * self._head_dim)
        size = math.prod(shape)
        if self._gathered.numel() < size:
            self._gathered = self._pool.new_empty(size + size // 4)  # room to grow: one block a sequence at a time
        gathered = self._gathered[:size].view(shape)
        torch.index_select(pool, 1, blocks, out=gathered)
        both = gathered.view(2, self._kv_heads * num_seqs, -1, self._head_dim)
        return both[0], both[1]

    def _view(self, batch: StepBatch, window: int | None) -> View:
        num_rows = np.diff(batch.query_start)  # [num_seqs]
        singles = np.flatnonzero(num_rows == 1)
        first_blocks = np.zeros_like(batch.seq_lens)  # [num_seqs], the block of the first token that is seen
        if window is not None:
            first_blocks = np.maximum(batch.seq_lens - num_rows - window + 1, 0) // BLOCK_SIZE
        num_seen = batch.seq_lens - first_blocks * BLOCK_SIZE
        return View(
            decodes=[
                self._decode_group(batch, group, first_blocks[group], window) for group in _alike(singles, num_seen)
            ],
            chunks=[self._chunk(batch, seq, int(first_blocks[seq]), window) for seq in np.flatnonzero(num_rows > 1)],
        )

    def _decode_group(
        self, batch: StepBatch, seqs: IntArray, first_blocks: IntArray, window: int | None
    ) -> DecodeGroup:
        seq_lens = batch.seq_lens[seqs]
        num_blocks = int((-(-seq_lens // BLOCK_SIZE) - first_blocks).max())
        columns = first_blocks[:, None] + np.arange(num_blocks)  # [group, num_blocks]
        tokens = (columns[:, :, None] * BLOCK_SIZE + np.arange(BLOCK_SIZE)).reshape(len(seqs), -1)
        hidden = tokens >= seq_lens[:, None]  # [group, tokens]
        if window is not None:
            hidden |= tokens < seq_lens[:, None] - window
        bias = self._pool.new_zeros(hidden.shape).masked_fill_(self._to_device(hidden), -torch.inf)
        is_whole_step = len(seqs) == len(batch.token_ids) and bool((seqs == np.arange(len(seqs))).all())
        within = np.minimum(columns, batch.block_tables.shape[1] - 1)  # those beyond a table are hidden
        return DecodeGroup(
            rows=None if is_whole_step else self._to_device(batch.query_start[seqs]),
            blocks=self._to_device(batch.block_tables[seqs[:, None], within].reshape(-1)),
            bias=bias.repeat(self._kv_heads, 1).unsqueeze(1),
        )

    def _chunk(self, batch: StepBatch, seq: np.int64, first_block: int, window: int | None) -> Chunk:
        start, stop = int(batch.query_start[seq]), int(batch.query_start[seq + 1])
        seq_len, first = int(batch.seq_lens[seq]), first_block * BLOCK_SIZE
        mask = None
        if seq_len > stop - start or (window is not None and seq_len > window):
            tokens, positions = np.arange(first, seq_len)[None], batch.positions[start:stop, None]
            visible = tokens <= positions
            if window is not None:
                visible &= tokens > positions - window
            mask = self._to_device(visible)
        blocks = self._to_device(batch.block_tables[seq, first_block : -(-seq_len // BLOCK_SIZE)])
        return Chunk(start=start, stop=stop, num_seen=seq_len - first, blocks=blocks, mask=mask)

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._pool.device)


def _zeros(size: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """[size]. On a CPU the pages come from the system when first written, at no cost now (`torch.zeros` writes all)."""
    if device.type != "cpu":
        return torch.zeros(size, device=device, dtype=dtype)
    num_bytes, line = size * dtype.itemsize, 64
    memory = np.zeros(num_bytes + line, np.uint8)
    start = -memory.ctypes.data % line
    return torch.from_numpy(memory)[start : start + num_bytes].view(dtype)


def _alike(seqs: IntArray, num_seen: IntArray) -> list[IntArray]:
    """`seqs` in groups padded to at most twice the blocks of the one of them that sees fewest tokens."""
    if not len(seqs):
        return []
    num_blocks = -(-num_seen[seqs] // BLOCK_SIZE)
    if num_blocks.max() <= max(2 * num_blocks.min(), _ALIKE_BLOCKS):
        return [seqs]
    order = np.argsort(num_blocks, kind="stable")
    groups: list[IntArray] = []
    first = 0
    for i in range(1, len(order) + 1):
        if i == len(order) or num_blocks[order[i]] > max(2 * num_blocks[order[first]], _ALIKE_BLOCKS):
            groups.append(seqs[order[first:i]])
            first = i
    return groups
