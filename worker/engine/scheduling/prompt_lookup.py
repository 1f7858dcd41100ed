"""Drafts from a sequence's own tokens: what followed the last time that it said the same.

    tokens   .. the quick brown fox jumps .. and the quick brown | fox jumps ..      drafts: what stands after the
                └──── n-gram ───┘                └── its tail ──┘                     n-gram's latest occurrence

Where text is quoted, listed or repeated the next tokens are often just these. A continuation that reaches the end of
the tokens goes on into itself, as in LZ77. Knows tokens and nothing else. Source: prompt lookup decoding (A. Saxena,
2023).
"""

from __future__ import annotations

# The longest that occurred before decides. One token alone says too little.
SIZES = (3, 2)


class PromptLookup:
    """Of one sequence, whose tokens only ever get more. Each is looked at once."""

    __slots__ = ("_after", "_num_indexed")

    def __init__(self) -> None:
        self._after: tuple[dict[tuple[int, ...], int], ...] = tuple({} for _ in SIZES)
        self._num_indexed = 0

    def propose(self, token_ids: list[int], most: int) -> list[int]:
        """At most `most` tokens that may come next; [] when the tail never occurred before."""
        self._index(token_ids)
        for size, after in zip(SIZES, self._after, strict=True):
            start = after.get(tuple(token_ids[-size:]))
            if start is not None:
                return _continuation(token_ids, start, most)
        return []

    def _index(self, token_ids: list[int]) -> None:
        """All n-grams that something follows: the tail is not its own precedent."""
        stop = len(token_ids)
        for size, after in zip(SIZES, self._after, strict=True):
            for end in range(max(size, self._num_indexed), stop):
                after[tuple(token_ids[end - size : end])] = end
        self._num_indexed = stop


def _continuation(token_ids: list[int], start: int, most: int) -> list[int]:
    drafts = token_ids[start : start + most]
    period = len(drafts)
    while len(drafts) < most:
        drafts.append(drafts[len(drafts) - period])
    return drafts
