"""The blocks of the KV cache: who is free, and how many block tables hold each one.

Struct of arrays, indexed by block. Block 0 is scratch (padding reads and writes it): it is never given out,
so its links serve as the sentinel of the free list, which is threaded through the blocks:

    next[0] = head ──▶ b ──▶ b ──▶ ... ──▶ tail ──▶ 0        prev[0] = tail

Invariants: a block is in the free list exactly when its reference count is 0; free + used = total. Blocks are
taken from the head and freed to the tail, so a freed block keeps its content for as long as possible, and
`share` can pull it out of the middle of the list: this is what a prefix cache needs. Source: vLLM v1, nano-vllm.
"""

from __future__ import annotations


class BlockPool:
    """`num_blocks` counts the scratch block; `total` does not."""

    __slots__ = ("_next", "_prev", "num_free", "references", "total")

    def __init__(self, num_blocks: int) -> None:
        self.total = num_blocks - 1
        self.num_free = self.total
        self.references = [0] * num_blocks
        self._next = [*range(1, num_blocks), 0]
        self._prev = [num_blocks - 1, *range(num_blocks - 1)]

    def try_allocate(self, count: int) -> list[int] | None:
        """`count` blocks with one reference each; None (and nothing changed) when fewer are free."""
        if count > self.num_free:
            return None
        blocks: list[int] = []
        for _ in range(count):
            block = self._next[0]
            self._unlink(block)
            self.references[block] = 1
            blocks.append(block)
        return blocks

    def share(self, block: int) -> None:
        """One more block table holds `block`, which may be free (its content is then revived)."""
        assert 0 < block <= self.total
        if self.references[block] == 0:
            self._unlink(block)
        self.references[block] += 1

    def free(self, blocks: list[int]) -> None:
        """A block table lets go of its blocks: last first, so that a chain's tail is evicted before its head."""
        for block in reversed(blocks):
            assert self.references[block] > 0, f"block {block} is freed twice"
            self.references[block] -= 1
            if self.references[block] == 0:
                self._append(block)

    def free_blocks(self) -> list[int]:
        """The free list, head first; for tests and diagnosis."""
        blocks: list[int] = []
        block = self._next[0]
        while block:
            blocks.append(block)
            block = self._next[block]
        return blocks

    def _unlink(self, block: int) -> None:
        before, after = self._prev[block], self._next[block]
        self._next[before] = after
        self._prev[after] = before
        self.num_free -= 1

    def _append(self, block: int) -> None:
        tail = self._prev[0]
        self._next[tail] = block
        self._prev[block] = tail
        self._next[block] = 0
        self._prev[0] = block
        self.num_free += 1
