"""Any order of adds, steps, ends and aborts keeps the books straight, and every schedule drains.

The naive model is a KV cache written token by token: what a step reads through a table must be what was written for
just these tokens, and a block that can be found is never written to.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.worker.engine.driving import BLOCK, make_sequence
from tests.unit.worker.engine.harness import EOS_ID, NoForesight, check_blocks
from worker.engine.executor import Schedule
from worker.engine.kv_cache_manager import KVCacheManager
from worker.engine.prefix_cache import Chain
from worker.engine.request import WAITING_ROW, Sequence
from worker.engine.scheduling.policies import HANDICAP_S, POLICIES
from worker.engine.scheduling.scheduler import Scheduler
from worker.engine.scheduling.speculation import Speculation

CAPACITY_BLOCKS = 8
MOST_TOKENS = CAPACITY_BLOCKS * BLOCK


class NaiveCache:
    """What each slot holds: the token written there last."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._kv = scheduler.kv
        self._slots: dict[int, int] = {}

    def execute(self, schedule: Schedule) -> None:
        for sequence, num_tokens in schedule.chunks.items():
            start, token_ids = sequence.num_computed_tokens, _with_drafts(sequence, schedule)
            for position in range(start, start + num_tokens):
                assert self._kv.cache.known_tokens(sequence.block_table[position // BLOCK]) is None, "not immutable"
                self._slots[self._slot(sequence, position)] = token_ids[position]
        for sequence, num_tokens in schedule.chunks.items():
            seen = range(sequence.num_computed_tokens + num_tokens)
            token_ids = _with_drafts(sequence, schedule)
            assert [self._slots[self._slot(sequence, p)] for p in seen] == token_ids[: len(seen)]

    def check_known(self) -> None:
        """Also of blocks that nobody holds."""
        for block in range(1, self._kv.pool.total + 1):
            known = self._kv.cache.known_tokens(block)
            assert known is None or known == [self._slots[block * BLOCK + i] for i in range(BLOCK)]

    def _slot(self, sequence: Sequence, position: int) -> int:
        return sequence.block_table[position // BLOCK] * BLOCK + position % BLOCK


def _with_drafts(sequence: Sequence, schedule: Schedule) -> list[int]:
    return sequence.token_ids + schedule.drafts.get(sequence, [])


def _made(schedule: Schedule, ends: set[int]) -> list[int]:
    """Mostly ones, so that drafts are right for a while; what each position gets does not depend on its step."""
    made: list[int] = []
    for index, sequence in enumerate(schedule.sampled):
        stop = len(_with_drafts(sequence, schedule))
        own = [
            2 if (position * 7 + sequence.arrival) % 5 == 0 else 1
            for position in range(len(sequence.token_ids), stop + 1)
        ]
        made += [EOS_ID if index in ends else own[0], *own[1:]]
    return made


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        budget=st.integers(1, 20),
        max_num_seqs=st.integers(1, 5),
        watermark=st.integers(0, 2),
        policy=st.sampled_from(sorted(POLICIES)),
        foresees=st.booleans(),
        max_drafts=st.sampled_from([0, 1, 4]),
    )
    def build(
        self, budget: int, max_num_seqs: int, watermark: int, policy: str, max_drafts: int, *, foresees: bool
    ) -> None:
        kv = KVCacheManager(num_blocks=CAPACITY_BLOCKS + 1, block_size=BLOCK, watermark_blocks=watermark)
        limits: dict[str, Any] = {"max_num_seqs": max_num_seqs, "max_step_tokens": budget}
        speculation = Speculation(max_drafts, lambda sequence: sequence.rank != 1) if max_drafts else None
        self.scheduler = Scheduler(kv, POLICIES[policy](), **limits, speculation=speculation)
        if not foresees:
            self.scheduler.forecast = NoForesight(BLOCK, kv.capacity_tokens)
        self.cache = NaiveCache(self.scheduler)
        self.alive: list[Sequence] = []
        self.num_added = 0
        self.now_s = 0.0

    @rule(
        prompt=st.lists(st.integers(1, 2), min_size=1, max_size=16),
        prefix=st.integers(0, 12),
        num_journaled=st.integers(0, 3),
        rank=st.integers(0, 3),
        salt=st.sampled_from([b"a", b"b", None]),
    )
    def add(self, prompt: list[int], prefix: int, num_journaled: int, rank: int, salt: bytes | None) -> None:
        self.num_added += 1
        tokens = [*([1] * prefix), *prompt, *([1] * num_journaled)]
        sequence = make_sequence(
            tokens,
            arrival=self.num_added,
            num_journaled=num_journaled,
            max_tokens=MOST_TOKENS - len(tokens) + num_journaled,
            arrival_s=self.now_s,
            rank=rank,
            chain=Chain(salt),
        )
        self.alive.append(sequence)
        self.scheduler.add(sequence)

    @rule(seconds=st.sampled_from([0.1, *HANDICAP_S]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(ends=st.sets(st.integers(0, 4), max_size=2), times=st.integers(1, 8))
    def step(self, ends: set[int], times: int) -> None:
        """The sampled with an index in `ends` finish in the last of the steps."""
        for turn in range(times):
            self._step(ends if turn == times - 1 else set())

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        sequence = self.alive.pop(data.draw(st.integers(0, len(self.alive) - 1)))
        blocks = list(sequence.block_table)
        self.scheduler.drop(sequence)
        assert sequence.block_table == []
        for block in blocks[-1:]:  # the last one is nobody else's
            with pytest.raises(AssertionError, match="freed twice"):
                self.scheduler.kv.pool.free([block])

    @invariant()
    def books_are_straight(self) -> None:
        check_blocks(self.scheduler)
        self.cache.check_known()
        here = [*self.scheduler.running, *self.scheduler.waiting]
        assert sorted(s.arrival for s in here) == sorted(s.arrival for s in self.alive)

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        bound = 100 * (1 + len(self.alive)) ** 2
        for _ in range(bound):
            if not self.alive:
                break
            self._step(set())
        assert not self.alive, "the schedule does not drain"
        assert self.scheduler.kv.num_used == 0

    def _step(self, ends: set[int]) -> None:
        running = set(self.scheduler.running)
        schedule = self.scheduler.schedule()
        assert schedule.budget >= 0
        assert sum(schedule.chunks.values()) + schedule.budget == self.scheduler.max_step_tokens
        assert bool(schedule.chunks) == bool(self.alive), "somebody can always run"
        assert not set(schedule.preempted) & set(schedule.chunks)
        to_compute = [sequence.num_tokens_to_compute for sequence in schedule.chunks if sequence in running]
        assert to_compute == sorted(to_compute, key=lambda count: count > 1), "a prefill before a decode"
        self.cache.execute(schedule)
        self.scheduler.update(schedule, _made(schedule, ends))
        assert all(sequence.num_tokens_to_compute == 1 for sequence in schedule.sampled if sequence.row != WAITING_ROW)
        self.alive = [sequence for sequence in self.alive if sequence.finish_reason is None]


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
