"""Block tables: which blocks hold the KV of each sequence.

    position      0 .. 15   16 .. 31   32 .. 40
    block_table   [  7,        3,         12   ]      slot = block_table[position // 16] * 16 + position % 16
                   found in the cache    its own: what is written to is never shared

Knows sequences, the block pool and the prefix cache, not the batch. Invariants: a table has just the blocks that its
sequence's tokens need, and during a step those of its drafts; only full, computed blocks are in two tables; a block
that is given out is known no more.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from shared.errors import ConfigurationError
from worker.engine.block_pool import BlockPool
from worker.engine.prefix_cache import PrefixCache
from worker.engine.request import Sequence

_APART = b"\xff"  # in no name: it is in no UTF-8


class CacheScope(enum.StrEnum):
    """Who shares computed prefixes. How fast an answer begins tells whether its prompt was known: between tenants
    that is a leak, so `tenant` is the default."""

    OFF = "off"
    TENANT = "tenant"
    SHARED = "shared"


class Fit(NamedTuple):
    """What a sequence would get: the blocks found, and how many of the free blocks all of it takes."""

    found: list[int]
    num_taken: int


class KVCacheManager:
    """`num_blocks` is the runner's, block 0 included. `watermark_blocks` (one in a hundred if None) are kept free for
    the growth of what runs: only admission respects them."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        watermark_blocks: int | None = None,
        scope: CacheScope = CacheScope.TENANT,
    ) -> None:
        if num_blocks < 2 or block_size < 1:
            raise ConfigurationError(f"a KV cache of {num_blocks} blocks of {block_size} tokens holds nothing")
        self.pool = BlockPool(num_blocks)
        self.cache = PrefixCache(num_blocks, block_size)
        self.block_size = block_size
        self.watermark_blocks = max(1, num_blocks // 100) if watermark_blocks is None else watermark_blocks
        self._scope = scope

    @property
    def capacity_tokens(self) -> int:
        """The longest sequence that fits when it is alone."""
        return self.pool.total * self.block_size

    @property
    def num_used(self) -> int:
        return self.pool.total - self.pool.num_free

    def salt_of(self, tenant: str, adapter: str = "") -> bytes | None:
        """Sequences with one salt share prefixes; None: this one shares with nobody, not even with itself later.

        `adapter` is the revision of one: its keys and values are its own.
        """
        if self._scope is CacheScope.OFF:
            return None
        shared_with = tenant.encode() if self._scope is CacheScope.TENANT else b""
        return _APART + adapter.encode() + _APART + shared_with if adapter else shared_with

    def blocks_needed(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def fit(self, sequence: Sequence) -> Fit:
        """For a sequence without blocks. Changes nothing; good until the pool changes. What is still to be scored is
        to be computed, known or not."""
        found = self.cache.find(sequence.chain, sequence.token_ids)
        if sequence.num_tokens_to_score:
            del found[sequence.num_scored_tokens // self.block_size :]
        references = self.pool.references
        num_revived = sum(references[block] == 0 for block in found)
        return Fit(found, self.blocks_needed(len(sequence.token_ids)) - len(found) + num_revived)

    def is_being_computed(self, sequence: Sequence, fit: Fit) -> bool:
        """Whether waiting would spare the sequence the next block: another one is at it."""
        if sequence.num_tokens_to_score:
            return False
        return self.cache.is_being_computed(sequence.chain, sequence.token_ids, len(fit.found))

    def admit(self, sequence: Sequence, fit: Fit) -> None:
        """A table for all tokens the sequence has; what was found counts as computed. It must fit."""
        for block in fit.found:
            self.pool.share(block)
        fresh = self._take(self.blocks_needed(len(sequence.token_ids)) - len(fit.found))
        assert fresh is not None, "admitted without looking whether it fits"
        sequence.block_table = fit.found + fresh
        sequence.num_computed_tokens = len(fit.found) * self.block_size
        self.cache.open(sequence.chain, sequence.token_ids, fit.found)

    def try_grow(self, sequence: Sequence) -> bool:
        """One more block for a running sequence; False, and nothing changed, when there is none."""
        fresh = self._take(1)
        if fresh is None:
            return False
        sequence.block_table += fresh
        return True

    def advance(self, sequence: Sequence, num_tokens: int) -> None:
        """The next `num_tokens` are computed; blocks that became full can be found from now on."""
        computed = sequence.num_computed_tokens + num_tokens
        sequence.num_computed_tokens = computed
        if computed >= sequence.chain.next_full:
            self.cache.store(sequence.chain, sequence.token_ids, sequence.block_table, computed)

    def trim(self, sequence: Sequence) -> None:
        """Blocks beyond those of its tokens are free again. The sequence has a new table then."""
        table, needed = sequence.block_table, self.blocks_needed(len(sequence.token_ids))
        if len(table) > needed:
            self.pool.free(table[needed:])
            sequence.block_table = table[:needed]

    def num_own_blocks(self, sequence: Sequence) -> int:
        """Blocks nobody else holds: what the sequence would free, and compute again."""
        references = self.pool.references
        return sum(references[block] == 1 for block in sequence.block_table)

    def distrust(self, sequence: Sequence) -> None:
        """What its blocks hold is not found any more: it may be what broke the sequence."""
        self.cache.forget(sequence.block_table)

    def forget_free(self) -> None:
        """What blocks that nobody holds have in them is not found any more."""
        self.cache.forget(self.pool.free_blocks())

    def free(self, sequence: Sequence) -> None:
        """The sequence gets a new, empty table: whoever mirrors tables can tell by identity. What the blocks hold
        can be found until they are given out anew."""
        self.pool.free(sequence.block_table)
        self.cache.close(sequence.chain)
        sequence.block_table = []
        sequence.num_computed_tokens = 0

    def _take(self, count: int) -> list[int] | None:
        blocks = self.pool.try_allocate(count)
        if blocks:
            self.cache.forget(blocks)
        return blocks
