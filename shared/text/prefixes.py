"""How a prompt begins, as hashes: by them a request finds the worker that has its prefix in its KV cache.

Knows token ids, no Redis and no blocks of any engine. Where a prompt is cut depends on its length so far only, so what
a conversation's next turn asks for holds where its last turn was cut:

    tokens   0 ........ 128 160 192 ... 992 1024 1088 ... 2048 2176 ...     steps of 32, then a sixteenth or less
    asked             ^   ^   ^       ^    ^    ^         all of them, the longest first
    left              ^       at 128, 256, 512, 1024, and the last one

A hash only prefers a worker; that prefixes are the same, the worker's cache finds out by itself. The salt keeps tenants
apart who do not share what is cached.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

FIRST, STEP = 128, 32  # tokens: computing fewer again is not worth waiting for anybody
LEFT_AT = frozenset({128, 256, 512, 1024})
_DIGEST_BYTES = 5  # ten letters; what is left of a request stays under 64, so that its hash in Redis stays small


@dataclass(frozen=True, slots=True)
class Prefixes:
    """`asked`: the longest first; `left`: by which the worker that takes it is remembered."""

    asked: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    def words(self) -> tuple[str, str]:
        return " ".join(self.asked), " ".join(self.left)


NO_PREFIXES = Prefixes()


def prefixes_of(token_ids: Sequence[int], salt: str) -> Prefixes:
    """`salt`: prompts of different salts have nothing in common. Of one shorter than `FIRST` there is nothing."""
    hasher = blake2b(salt.encode() + b"\0", digest_size=_DIGEST_BYTES)
    asked: list[str] = []
    left: list[str] = []
    start, end = 0, FIRST
    while end <= len(token_ids):
        hasher.update(array("i", token_ids[start:end]).tobytes())
        asked.append(hasher.hexdigest())
        if end in LEFT_AT:
            left.append(asked[-1])
        start, end = end, end + max(STEP, 1 << (end.bit_length() - 5))
    if asked and asked[-1] not in left:
        left.append(asked[-1])
    return Prefixes(tuple(reversed(asked)), tuple(left))
