"""Masks of allowed tokens, computed in a thread while the model runs.

A step asks for the masks of its constrained choices when its arrays are built, and the sampler waits for them after
the forward pass: the time they take is hidden behind it. The engine does not touch an automaton in between.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from worker.engine.structured import Automaton
from worker.model.sampling.rows import BitArray, IntArray

# An automaton, and the ids that may not be chosen yet (min_tokens).
Wanted = tuple[Automaton, Collection[int]]


class PendingMasks:
    """See TokenMasks."""

    def __init__(self, rows: IntArray, masks: Future[BitArray]) -> None:
        self.rows = rows
        self._masks = masks

    def wait(self) -> BitArray:
        return self._masks.result()


class MaskThread:
    """Idle, it is no thread yet."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="masks")

    def start(self, rows: IntArray, wanted: list[Wanted]) -> PendingMasks:
        return PendingMasks(rows, self._pool.submit(_fill, wanted))

    def close(self) -> None:
        self._pool.shutdown(wait=True)


def _fill(wanted: list[Wanted]) -> BitArray:
    return np.stack([_without(automaton.mask(), banned) for automaton, banned in wanted])


def _without(mask: BitArray, banned: Collection[int]) -> BitArray:
    """Where nothing would be left the grammar wins: it has ended, and there is no other token to take."""
    if not banned:
        return mask
    left = mask.copy()
    for token_id in banned:
        left[token_id >> 5] &= ~np.uint32(1 << (token_id & 31))
    return left if left.any() else mask
