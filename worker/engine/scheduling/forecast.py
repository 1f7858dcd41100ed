"""How much the running sequences will still grow: a quantile of the answers that ended lately.

    blocks   [#####################]..........     #: in the table    .: expected, and so promised
              held by one sequence   until it ends

Knows no blocks by number. Invariant: `promised_blocks` is the sum over those that run of what is expected beyond their
tables. Admission that did not count this let in more than could end: public reports on vLLM v1 tell of throughput
falling to a hundredth while everybody was preempted by everybody.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque

from worker.engine.request import Sequence

WINDOW = 256
QUANTILE = 0.5
# Until answers have ended: so many tokens, and no more than this part of the cache.
PRIOR_TOKENS = 128
PRIOR_SHARE = 8


class GrowthForecast:
    def __init__(self, block_size: int, capacity_tokens: int) -> None:
        self.promised_blocks = 0
        self._block_size = block_size
        self._prior = max(1, min(PRIOR_TOKENS, capacity_tokens // PRIOR_SHARE))
        self._recent: deque[int] = deque(maxlen=WINDOW)
        self._sorted: list[int] = []

    def record(self, num_tokens: int) -> None:
        """An answer ended by itself with so many tokens."""
        if len(self._recent) == WINDOW:
            del self._sorted[bisect_right(self._sorted, self._recent[0]) - 1]
        self._recent.append(num_tokens)
        insort(self._sorted, num_tokens)

    def tokens_left(self, num_made: int) -> int:
        """What an answer of `num_made` tokens will probably still get: the quantile among those that got longer."""
        first = bisect_right(self._sorted, num_made)
        num_longer = len(self._sorted) - first
        if num_longer:
            return self._sorted[first + int(QUANTILE * num_longer)] - num_made
        return max(num_made // 2, 1) if self._sorted else max(self._prior - num_made, self._block_size)

    def growth_blocks(self, sequence: Sequence) -> int:
        """Beyond the blocks of the tokens it has."""
        return self._blocks(self._expected_tokens(sequence)) - self._blocks(len(sequence.token_ids))

    def newcomer_blocks(self) -> int:
        """The most that `growth_blocks` says of a sequence that has made nothing yet."""
        return self._blocks(self.tokens_left(0)) + 1

    def admit(self, sequence: Sequence) -> None:
        sequence.num_expected_blocks = self._blocks(self._expected_tokens(sequence))
        self.promised_blocks += sequence.num_expected_blocks - len(sequence.block_table)

    def grow(self, sequence: Sequence, num_ahead: int = 0) -> None:
        """Its table has got a block more: a promised one, or one beyond and then a new promise is made. `num_ahead` of
        the tokens that the table is for are not known yet."""
        self.promised_blocks -= 1
        if len(sequence.block_table) > sequence.num_expected_blocks:
            expected = self._blocks(max(self._expected_tokens(sequence), len(sequence.token_ids) + num_ahead))
            self.promised_blocks += expected - sequence.num_expected_blocks
            sequence.num_expected_blocks = expected

    def leave(self, sequence: Sequence) -> None:
        """Before its table is freed."""
        self.promised_blocks -= sequence.num_expected_blocks - len(sequence.block_table)

    def _expected_tokens(self, sequence: Sequence) -> int:
        """Also of one that ignores the end of sequence: its whole length kept free would keep others out for as long as
        it runs, and what is foreseen too short is promised anew as it grows."""
        num_made = sequence.num_generated_tokens
        return len(sequence.token_ids) + min(sequence.params.max_tokens - num_made, self.tokens_left(num_made))

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)
