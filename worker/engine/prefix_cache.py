"""Which block holds the KV of which prefix, so that it is computed once.

    tokens    t0 ......... t15   t16 ........ t31   t32 .. t40       a block that is not full has no digest
    digest    d0 = H(salt, ·) ─▶ d1 = H(d0, ·)

Knows token ids and block numbers, no sequences and no schedule. Invariants: a block is known here from the moment
its last token is computed until it is given out anew, also while it is free; its content never changes meanwhile.
A digest only finds a candidate: it is a hit when its tokens and its true parent are those asked for (a parent is
told by a serial number that is never given twice), so a collision can cost time, never an answer. Sequences with
different salts share nothing. Sources: vLLM v1, nano-vllm.
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass, field
from hashlib import blake2b

DIGEST_BYTES = 16
NEVER = sys.maxsize


@dataclass(slots=True, eq=False)
class Chain:
    """What the cache keeps of one sequence. `salt` None: it takes no part in the cache.

    `digests` and `contents` cover its full blocks as far as anybody asked. `num_stored` of its block table are known
    to the cache, the last of them as `parent`; the next one is full with `next_full` tokens computed.
    """

    salt: bytes | None = None
    digests: list[bytes] = field(default_factory=list[bytes])
    contents: list[bytes] = field(default_factory=list[bytes])
    num_stored: int = 0
    parent: int | bytes = b""
    next_full: int = NEVER


@dataclass(slots=True, frozen=True)
class _Entry:
    """`parent` is the serial of the block before, or the salt."""

    digest: bytes
    parent: int | bytes
    content: bytes
    serial: int


class PrefixCache:
    """`num_blocks` counts the scratch block."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self._block_of: dict[bytes, int] = {}
        self._entries: list[_Entry | None] = [None] * num_blocks
        self._computing: dict[bytes, Chain] = {}
        self._num_serials = 0

    def __len__(self) -> int:
        return len(self._block_of)

    def find(self, chain: Chain, token_ids: list[int]) -> list[int]:
        """The blocks of the longest known prefix, short of the last token: computing that one gives the next."""
        if chain.salt is None:
            return []
        limit = (len(token_ids) - 1) // self._block_size
        self._extend(chain, token_ids, limit)
        blocks: list[int] = []
        parent: int | bytes = chain.salt
        for index in range(limit):
            block = self._match(chain, index, parent)
            if block is None:
                break
            blocks.append(block)
            parent = self._serial(block)
        return blocks

    def is_being_computed(self, chain: Chain, token_ids: list[int], num_blocks: int) -> bool:
        """Whether the block after the first `num_blocks`, all of them found, is under way for one that runs."""
        if chain.salt is None or num_blocks >= (len(token_ids) - 1) // self._block_size:
            return False
        return chain.digests[num_blocks] in self._computing

    def open(self, chain: Chain, token_ids: list[int], blocks: list[int]) -> None:
        """A sequence begins to run on the `blocks` just found; the rest of its full blocks is under way now."""
        if chain.salt is None:
            return
        chain.num_stored = len(blocks)
        chain.parent = self._serial(blocks[-1]) if blocks else chain.salt
        chain.next_full = (len(blocks) + 1) * self._block_size
        self._extend(chain, token_ids, len(token_ids) // self._block_size)
        for digest in chain.digests[len(blocks) :]:
            self._computing.setdefault(digest, chain)

    def store(self, chain: Chain, token_ids: list[int], block_table: list[int], num_computed: int) -> None:
        """Blocks whose last token is computed become known. Content that is known already keeps its first block."""
        num_full = num_computed // self._block_size
        self._extend(chain, token_ids, num_full)
        for index in range(chain.num_stored, num_full):
            digest = chain.digests[index]
            block = self._match(chain, index, chain.parent)
            if block is None:
                block = block_table[index]
                self._know(block, digest, chain.parent, chain.contents[index])
            chain.parent = self._serial(block)
            if self._computing.get(digest) is chain:
                del self._computing[digest]
        chain.num_stored = num_full
        chain.next_full = (num_full + 1) * self._block_size

    def close(self, chain: Chain) -> None:
        """The sequence runs no more. Its digests stay: it may run again, and its tokens do not change."""
        for digest in chain.digests[chain.num_stored :]:
            if self._computing.get(digest) is chain:
                del self._computing[digest]
        chain.num_stored = 0
        chain.next_full = NEVER

    def forget(self, blocks: list[int]) -> None:
        """These are given out anew."""
        for block in blocks:
            entry = self._entries[block]
            if entry is not None:
                self._entries[block] = None
                del self._block_of[entry.digest]

    def known_tokens(self, block: int) -> list[int] | None:
        """What a known block holds; for tests and diagnosis."""
        entry = self._entries[block]
        return None if entry is None else array("i", entry.content).tolist()

    def _extend(self, chain: Chain, token_ids: list[int], num_blocks: int) -> None:
        size = self._block_size
        for index in range(len(chain.digests), num_blocks):
            content = array("i", token_ids[index * size : (index + 1) * size]).tobytes()
            before = chain.digests[-1] if index else _root(chain.salt)
            chain.digests.append(blake2b(before + content, digest_size=DIGEST_BYTES).digest())
            chain.contents.append(content)

    def _match(self, chain: Chain, index: int, parent: int | bytes) -> int | None:
        block = self._block_of.get(chain.digests[index])
        if block is None:
            return None
        entry = self._entries[block]
        assert entry is not None
        return block if entry.parent == parent and entry.content == chain.contents[index] else None

    def _know(self, block: int, digest: bytes, parent: int | bytes, content: bytes) -> None:
        """A digest that leads elsewhere (to a child of a block long gone, or by collision) leads here from now on."""
        stale = self._block_of.get(digest)
        if stale is not None:
            self._entries[stale] = None
        self._num_serials += 1
        self._block_of[digest] = block
        self._entries[block] = _Entry(digest, parent, content, self._num_serials)

    def _serial(self, block: int) -> int:
        entry = self._entries[block]
        assert entry is not None, f"block {block} is not known"
        return entry.serial


def _root(salt: bytes | None) -> bytes:
    assert salt is not None
    return blake2b(salt, digest_size=DIGEST_BYTES).digest()
