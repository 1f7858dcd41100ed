"""Iteration-level continuous batching (Orca) with chunked prefill and preemption by recompute (vLLM v1).

    waiting ──admit──▶ running ──update──▶ ended          preempted: back to the head of its class, blocks freed,
       ▲                  │                               tokens kept; what the cache still has is not computed again
       └────preempt───────┘

Knows no model, no text and no clock. Invariants: no step computes more than `max_step_tokens`; a sequence has
blocks and a row only while it runs; with nothing running no block is used. Every schedule drains: a sequence yields
only to one that grows or outranks it, what grew keeps its tokens, and alone each fits (the engine refuses what would
not).
"""

from __future__ import annotations

from shared import faults
from worker.engine.executor import Schedule, Taken
from worker.engine.kv_cache_manager import Fit, KVCacheManager
from worker.engine.request import NOT_FINITE, WAITING_ROW, Sequence
from worker.engine.scheduling.cost_model import Pace
from worker.engine.scheduling.forecast import GrowthForecast
from worker.engine.scheduling.foresight import Foresight
from worker.engine.scheduling.policies import MAX_PREEMPTIONS, Policy
from worker.engine.scheduling.speculation import Speculation

# One that does not fit is passed by so many, then nobody passes it.
MAX_SKIPS = 8
# Steps for which a sequence waits while another one computes what it could then find.
MAX_HOLDS = 32


class Scheduler:
    """`schedule` and `update` alternate, but for steps that are foreseen: those come between the two. `add` and
    `drop` come when no schedule is being made.

    Invariants: `running` is in order of admission; `waiting` is in the policy's order, but for those that were
    preempted, who stand at the head of their rank.
    """

    def __init__(  # noqa: PLR0913 - two of them choose how steps are made, and are left out in most tests
        self,
        kv: KVCacheManager,
        policy: Policy,
        *,
        max_num_seqs: int,
        max_step_tokens: int,
        pace: Pace | None = None,
        speculation: Speculation | None = None,
        foresight: Foresight | None = None,
    ) -> None:
        self.kv = kv
        self.max_num_seqs = max_num_seqs
        self.max_step_tokens = max_step_tokens
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self.forecast = GrowthForecast(kv.block_size, kv.capacity_tokens)
        self.pace = pace or Pace(0.0)
        self._policy = policy
        self._speculation = speculation
        self._foresight = foresight
        self._free_rows = list(reversed(range(max_num_seqs)))

    def add(self, sequence: Sequence) -> None:
        place = self._policy.place(sequence)
        index = len(self.waiting)
        while index and self._policy.place(self.waiting[index - 1]) > place:
            index -= 1
        self.waiting.insert(index, sequence)

    def drop(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is; its blocks are free at once. One that ended is not there."""
        if sequence.row != WAITING_ROW:
            self._leave(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def schedule(self) -> Schedule:
        schedule = Schedule(budget=self.max_step_tokens)
        prefills = self._schedule_decodes(schedule)
        if prefills or self.waiting:
            self._keep_pace(schedule, prefills)
            self._schedule_prefills(schedule, prefills)
            self._admit_waiting(schedule)
        if self._speculation is not None:
            self._speculation.give_drafts(schedule, self.kv, self.pace.model)
        schedule.seal()
        return schedule

    def foresee(self, under_way: Schedule) -> Schedule | None:
        """The step after one whose tokens are not known yet; None: those decide. With drafts they do."""
        if self._foresight is None or self._speculation is not None or self._might_admit():
            return None
        return self._foresight.follow(under_way, len(self.running), self.kv, self.forecast)

    def update(self, schedule: Schedule, token_ids: list[int]) -> list[Taken]:
        """Take the results, for each of `schedule.sampled`. Those that end are gone; who was gone before gets none."""
        advance, drafts = self.kv.advance, schedule.drafts
        for sequence, num_tokens in schedule.chunks.items():
            if sequence.row != WAITING_ROW and sequence not in drafts:
                advance(sequence, num_tokens)
        taken: list[Taken] = []
        sample = 0
        for sequence in schedule.sampled:
            if sequence.row == WAITING_ROW:
                new = list[int](), ""
            elif sequence in drafts and self._speculation is not None:
                new = self._speculation.take(sequence, schedule, token_ids[sample:], self.kv, self.forecast)
            else:
                new = [token_ids[sample]], sequence.append(token_ids[sample])
            taken.append(Taken(sample, *new))
            sample += 1 + len(drafts.get(sequence, ()))
            if NOT_FINITE in new[0]:
                self.kv.distrust(sequence)
            if sequence.finish_reason is not None and sequence.row != WAITING_ROW:
                self.forecast.record(sequence.num_generated_tokens)
                self._leave(sequence)
        assert sample == len(token_ids), "not what the schedule asked for"
        return taken

    def free_slots(self) -> int:
        """How many sequences `add` takes without one having to wait for a row."""
        return max(0, self.max_num_seqs - len(self.running) - len(self.waiting))

    def free_tokens(self) -> int:
        """How many prompt tokens of one sequence find blocks now, after those that wait already and the growth that
        is expected of all. Blocks that are free and still known count as free. With nothing running there is no
        growth to keep blocks for, and what fits alone is taken."""
        num_free = self.kv.pool.num_free
        for sequence in self.waiting:
            num_free -= self.kv.blocks_needed(len(sequence.token_ids)) + self.forecast.growth_blocks(sequence)
        if self.running or self.waiting:
            num_free -= self._kept_blocks() + self.forecast.newcomer_blocks()
        return max(0, num_free) * self.kv.block_size

    def _schedule_decodes(self, schedule: Schedule) -> list[Sequence]:
        """One token for each that has its other tokens computed; returns the others."""
        prefills: list[Sequence] = []
        block_size = self.kv.block_size
        for sequence in tuple(self.running):
            num_tokens = len(sequence.token_ids)
            if sequence.row == WAITING_ROW:
                continue  # it yielded to one before it
            if num_tokens - sequence.num_computed_tokens > 1:
                prefills.append(sequence)
            elif schedule.budget:
                has_room = num_tokens <= len(sequence.block_table) * block_size
                if has_room or self._make_room(sequence, schedule):
                    schedule.give_one(sequence)
        return prefills

    def _keep_pace(self, schedule: Schedule, prefills: list[Sequence]) -> None:
        """Beside decodes no more of the prompts than keeps the step short."""
        if schedule.chunks:
            position = prefills[0].num_computed_tokens if prefills else 0
            limit = self.pace.chunk(schedule.work(), position)
            schedule.budget = schedule.budget if limit is None else min(schedule.budget, limit)

    def _schedule_prefills(self, schedule: Schedule, prefills: list[Sequence]) -> None:
        """Those under way, before new ones of their rank. They got the blocks of all their tokens when admitted."""
        for sequence in sorted(prefills, key=self._policy.place):
            self._admit_waiting(schedule, ahead_of=sequence)
            if schedule.budget and sequence.row != WAITING_ROW:
                schedule.give(sequence)

    def _admit_waiting(self, schedule: Schedule, ahead_of: Sequence | None = None) -> None:
        """Admit while rows, blocks and budget permit; with `ahead_of`, only those that outrank it."""
        if schedule.preempted:
            return  # the blocks just taken are for the growth of those that run
        rank = self._policy.rank
        lowest = max(map(rank, self.running), default=0)
        passed: list[Sequence] = []
        for sequence in tuple(self.waiting):
            if not schedule.budget or faults.hit_in_thread("kv_alloc"):
                return
            if ahead_of is not None and not self._outranks(sequence, ahead_of):
                return
            if not self._free_rows and rank(sequence) >= lowest:
                continue  # nobody here can make way for it
            fit = self.kv.fit(sequence)
            if self._is_held(sequence, fit):
                continue
            if self._try_admit(sequence, fit, schedule):
                for other in passed:
                    other.num_skips += 1
            else:
                passed.append(sequence)
            if len(passed) > MAX_SKIPS or any(other.num_skips >= MAX_SKIPS for other in passed):
                return

    def _might_admit(self) -> bool:
        """Whether one that waits may get a row, now or from one that it outranks."""
        rank = self._policy.rank
        lowest = max(map(rank, self.running), default=0)
        return any(self._free_rows or rank(sequence) < lowest for sequence in self.waiting)

    def _is_held(self, sequence: Sequence, fit: Fit) -> bool:
        """It waits, for a while, for blocks that another one is computing."""
        if sequence.num_holds >= MAX_HOLDS or not self.kv.is_being_computed(sequence, fit):
            return False
        sequence.num_holds += 1
        return True

    def _try_admit(self, sequence: Sequence, fit: Fit, schedule: Schedule) -> bool:
        """What was found stays found when others yield: nothing is given out before it is taken."""
        if not self._has_room(sequence, fit) and not self._displace_for(sequence, fit, schedule):
            return False
        self.waiting.remove(sequence)
        sequence.row = self._free_rows.pop()
        self.running.append(sequence)
        self.kv.admit(sequence, fit)
        self.forecast.admit(sequence)
        schedule.enter(sequence)
        return True

    def _has_room(self, sequence: Sequence, fit: Fit) -> bool:
        return bool(self._free_rows) and self._lacking_blocks(sequence, fit) <= 0

    def _lacking_blocks(self, sequence: Sequence, fit: Fit) -> int:
        """More blocks than are free: for what it has, and for the growth of all. Alone, it lacks none."""
        if not self.running:
            return 0
        return fit.num_taken + self.forecast.growth_blocks(sequence) + self._kept_blocks() - self.kv.pool.num_free

    def _kept_blocks(self) -> int:
        return self.forecast.promised_blocks + self.kv.watermark_blocks

    def _displace_for(self, newcomer: Sequence, fit: Fit, schedule: Schedule) -> bool:
        """Make room by those whom the newcomer outranks, if that is enough; else nobody yields."""
        candidates = self._victims_of(newcomer)
        references, found = self.kv.pool.references, set(fit.found)
        lacking = self._lacking_blocks(newcomer, fit)
        victims: list[Sequence] = []
        while (lacking > 0 and len(victims) < len(self.running)) or not (self._free_rows or victims):
            if not candidates:
                return False
            victim = self._policy.who_yields(candidates, self._cost_of_yielding)
            candidates.remove(victim)
            victims.append(victim)
            freed = sum(references[block] == 1 and block not in found for block in victim.block_table)
            lacking -= freed + victim.num_expected_blocks - len(victim.block_table)
        for victim in victims:
            self._preempt(victim, schedule)
        schedule.num_displaced += len(victims)
        return True

    def _victims_of(self, newcomer: Sequence) -> list[Sequence]:
        """Those that would have to make way for it, if that helps."""
        return [
            other
            for other in self.running
            if other.num_preemptions < MAX_PREEMPTIONS and self._outranks(newcomer, other)
        ]

    def _outranks(self, newcomer: Sequence, other: Sequence) -> bool:
        policy = self._policy
        return policy.rank(newcomer) < policy.rank(other) and policy.place(newcomer) < policy.place(other)

    def _make_room(self, sequence: Sequence, schedule: Schedule) -> bool:
        """A block for the sequence's next token, taken from others if need be; False when it had to yield."""
        while not self.kv.try_grow(sequence):
            assert len(self.running) > 1, "a sequence that does not fit alone was let in"
            victim = self._policy.who_yields(self.running, self._cost_of_yielding)
            self._preempt(victim, schedule)
            if victim is sequence:
                return False
        self.forecast.grow(sequence)
        return True

    def _cost_of_yielding(self, sequence: Sequence) -> int:
        """Tokens to compute again. What others hold as well is not lost."""
        shared = len(sequence.block_table) - self.kv.num_own_blocks(sequence)
        return max(0, sequence.num_computed_tokens - shared * self.kv.block_size)

    def _preempt(self, victim: Sequence, schedule: Schedule) -> None:
        """The victim may have been scheduled in this very step: that is undone."""
        schedule.take_back(victim)
        victim.num_lost_tokens = victim.num_computed_tokens
        victim.num_preemptions += 1
        self.num_preemptions += 1
        self._leave(victim)
        self.waiting.insert(self._head_of_rank(victim), victim)
        schedule.preempted.append(victim)

    def _head_of_rank(self, victim: Sequence) -> int:
        """Before the first of its rank, but for those that were preempted too and come before it."""
        policy, place = self._policy, self._policy.place(victim)
        for index, other in enumerate(self.waiting):
            is_earlier = policy.place(other) <= place
            if not is_earlier or (policy.rank(other) == policy.rank(victim) and not other.num_preemptions):
                return index
        return len(self.waiting)

    def _leave(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._free_rows.append(sequence.row)
        sequence.row = WAITING_ROW
        self.forecast.leave(sequence)
        self.kv.free(sequence)
        assert self.running or self.kv.num_used == 0, "blocks leaked"
