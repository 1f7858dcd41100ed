"""The step after one that has not ended: planned as if nobody ended in it, so that a device need not wait for us.

    under way    positions  p      makes a token t, not known yet
    next         positions  p + 1  computes t, which the runner takes from where the step under way puts it

Told only where all that runs is decodes whose tokens are all the argmax, nobody waits who might be let in, and blocks
are there without anybody yielding. Who ends in the step under way gets a token too much, which is dropped; who ends by
its limit is left out. Source: the idea is NanoFlow's and SGLang's (overlapped scheduling).
"""

from __future__ import annotations

from collections.abc import Callable

from worker.engine.executor import Schedule
from worker.engine.kv_cache_manager import KVCacheManager
from worker.engine.request import WAITING_ROW, Sequence
from worker.engine.scheduling.forecast import GrowthForecast


class Foresight:
    """`is_plain` says whose tokens are all the argmax."""

    def __init__(self, is_plain: Callable[[Sequence], bool]) -> None:
        self._is_plain = is_plain

    def follow(
        self, under_way: Schedule, num_running: int, kv: KVCacheManager, forecast: GrowthForecast
    ) -> Schedule | None:
        """None: it cannot be told before the tokens are known. Tables have room for the next token then."""
        alive = [sequence for sequence in under_way.sampled if sequence.row != WAITING_ROW]
        if len(alive) < num_running or under_way.drafts:
            return None
        going_on = [s for s in alive if s.num_generated_tokens + 1 < s.params.max_tokens]
        if not going_on or not all(map(self._is_plain, going_on)):
            return None
        growing = [s for s in going_on if kv.blocks_needed(len(s.token_ids) + 1) > len(s.block_table)]
        if len(growing) > kv.pool.num_free:
            return None
        for sequence in growing:
            kv.try_grow(sequence)
            forecast.grow(sequence, num_ahead=1)
        schedule = Schedule(under_way.budget + len(under_way.chunks), follows=under_way)
        for sequence in going_on:
            schedule.give_one(sequence)
        schedule.sampled = going_on
        return schedule
