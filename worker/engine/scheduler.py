"""Iteration-level continuous batching (Orca) with chunked prefill and preemption by recompute (vLLM v1).

    waiting ──admit──▶ running ──update──▶ ended          preempted: back to the head of waiting, blocks freed,
       ▲                  │                               tokens kept, all of them to be computed again
       └────preempt───────┘

Knows no model, no text and no clock. Invariants: no step computes more than `max_step_tokens`; a sequence has
blocks and a row only while it runs; with nothing running no block is used. Every schedule drains: the running
sequence with the most computed tokens is never preempted, and alone it fits (the engine refuses what would not).
"""

from __future__ import annotations

from collections import deque

from shared import faults
from worker.engine.executor import Schedule
from worker.engine.kv_cache_manager import KVCacheManager
from worker.engine.policies import Policy
from worker.engine.request import WAITING_ROW, Sequence


class Scheduler:
    """`schedule` and `update` alternate; `add` and `drop` come between an update and the next schedule.

    Invariant: `running` is in order of admission, and only its last may be a prefill under way, because one is
    admitted only with budget left over. So every decode comes before it, without sorting.
    """

    def __init__(self, kv: KVCacheManager, policy: Policy, *, max_num_seqs: int, max_step_tokens: int) -> None:
        self.kv = kv
        self.max_num_seqs = max_num_seqs
        self.max_step_tokens = max_step_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self._policy = policy
        self._free_rows = list(reversed(range(max_num_seqs)))

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def drop(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is; its blocks are free at once. One that ended is not there."""
        if sequence.row != WAITING_ROW:
            self._leave(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def schedule(self) -> Schedule:
        schedule = Schedule(budget=self.max_step_tokens)
        self._schedule_running(schedule)
        self._schedule_waiting(schedule)
        schedule.seal()
        return schedule

    def update(self, schedule: Schedule, token_ids: list[int]) -> list[str]:
        """Take the step's results: the text released by each of `schedule.sampled`. Those that ended are gone."""
        for sequence, num_tokens in schedule.chunks.items():
            sequence.num_computed_tokens += num_tokens
        texts: list[str] = []
        for sequence, token_id in zip(schedule.sampled, token_ids, strict=True):
            texts.append(sequence.append(token_id))
            if sequence.finish_reason is not None:
                self._leave(sequence)
        return texts

    def free_slots(self) -> int:
        """How many sequences `add` takes without one having to wait for a row."""
        return max(0, self.max_num_seqs - len(self.running) - len(self.waiting))

    def free_tokens(self) -> int:
        """How many prompt tokens of one sequence find blocks now, after those that wait already. With nothing
        running there is no growth to keep blocks for, and what fits alone is taken."""
        promised = sum(self.kv.blocks_needed(len(sequence.token_ids)) for sequence in self.waiting)
        kept = self.kv.watermark_blocks if self.running or self.waiting else 0
        return max(0, self.kv.pool.num_free - promised - kept) * self.kv.block_size

    def _schedule_running(self, schedule: Schedule) -> None:
        """In order of admission, which puts decodes first: see the invariants."""
        for sequence in list(self.running):
            if schedule.budget == 0:
                return
            if sequence.row != WAITING_ROW and self._make_room(sequence, schedule):
                schedule.give(sequence)

    def _schedule_waiting(self, schedule: Schedule) -> None:
        """Admit while rows, blocks and budget permit; the first that does not fit ends it, lest it starve.

        What is admitted gets the blocks of all its tokens at once, so a prefill under way needs no more.
        """
        if schedule.preempted:
            return  # the blocks just taken are for the growth of those that run
        while self.waiting and self._free_rows and schedule.budget:
            if faults.hit_in_thread("kv_alloc"):
                return
            sequence = self._policy.who_next(self.waiting)
            if self.kv.try_allocate(sequence, keep_watermark=bool(self.running)) is None:
                return
            self.waiting.remove(sequence)
            sequence.row = self._free_rows.pop()
            self.running.append(sequence)
            schedule.give(sequence)

    def _make_room(self, sequence: Sequence, schedule: Schedule) -> bool:
        """Blocks for the sequence's next tokens, taken from others if need be; False when it had to yield."""
        while self.kv.try_allocate(sequence) is None:
            victim = self._policy.who_yields(self.running)
            self._preempt(victim, schedule)
            if victim is sequence:
                return False
        return True

    def _preempt(self, victim: Sequence, schedule: Schedule) -> None:
        """The victim may have been scheduled in this very step: that is undone."""
        assert len(self.running) > 1, "a sequence that does not fit alone was let in"
        schedule.take_back(victim)
        self._leave(victim)
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.appendleft(victim)
        schedule.preempted.append(victim)

    def _leave(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._free_rows.append(sequence.row)
        sequence.row = WAITING_ROW
        self.kv.free(sequence)
        assert self.running or self.kv.num_used == 0, "blocks leaked"
