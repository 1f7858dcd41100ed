"""Block tables: which blocks hold the KV of each sequence.

    position      0 .. 15   16 .. 31   32 .. 40
    block_table   [  7,        3,         12   ]      slot = block_table[position // 16] * 16 + position % 16

Knows sequences and the block pool, not the batch. Invariants: a table has just the blocks that its sequence's
tokens need; the watermark is kept free for the growth of what runs, and only admission respects it.
"""

from __future__ import annotations

from shared.errors import ConfigurationError
from worker.engine.block_pool import BlockPool
from worker.engine.request import Sequence


class KVCacheManager:
    """`num_blocks` is the runner's, block 0 included. `watermark_blocks` defaults to one in a hundred."""

    def __init__(self, *, num_blocks: int, block_size: int, watermark_blocks: int | None = None) -> None:
        if num_blocks < 2 or block_size < 1:
            raise ConfigurationError(f"a KV cache of {num_blocks} blocks of {block_size} tokens holds nothing")
        self.pool = BlockPool(num_blocks)
        self.block_size = block_size
        self.watermark_blocks = max(1, num_blocks // 100) if watermark_blocks is None else watermark_blocks

    @property
    def capacity_tokens(self) -> int:
        """The longest sequence that fits when it is alone."""
        return self.pool.total * self.block_size

    @property
    def num_used(self) -> int:
        return self.pool.total - self.pool.num_free

    def blocks_needed(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def try_allocate(self, sequence: Sequence, *, keep_watermark: bool = False) -> int | None:
        """Make room for all tokens the sequence has. Returns how many blocks that took, 0 when there was room;
        None, and nothing changed, when there are not enough (beyond the watermark, if it is to be kept)."""
        table = sequence.block_table
        missing = self.blocks_needed(len(sequence.token_ids)) - len(table)
        if missing <= 0:
            return 0
        if keep_watermark and missing + self.watermark_blocks > self.pool.num_free:
            return None
        blocks = self.pool.try_allocate(missing)
        if blocks is None:
            return None
        table.extend(blocks)
        return missing

    def free(self, sequence: Sequence) -> None:
        """The sequence gets a new, empty table: whoever mirrors tables can tell by identity."""
        self.pool.free(sequence.block_table)
        sequence.block_table = []
