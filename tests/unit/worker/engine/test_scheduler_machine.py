"""Any order of adds, steps, ends and aborts keeps the books straight, and every schedule drains."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shared.schemas import SamplingParams
from tests.unit.worker.engine.harness import EOS_ID, LetterDecoder, check_blocks
from worker.engine.detokenizer import Detokenizer
from worker.engine.kv_cache_manager import KVCacheManager
from worker.engine.policies import FirstComeFirstServed
from worker.engine.request import Sequence
from worker.engine.scheduler import Scheduler

CAPACITY_BLOCKS = 6
BLOCK = 4


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        budget=st.integers(1, 20),
        max_num_seqs=st.integers(1, 5),
        watermark=st.integers(0, 2),
    )
    def build(self, budget: int, max_num_seqs: int, watermark: int) -> None:
        kv = KVCacheManager(num_blocks=CAPACITY_BLOCKS + 1, block_size=BLOCK, watermark_blocks=watermark)
        self.scheduler = Scheduler(kv, FirstComeFirstServed(), max_num_seqs=max_num_seqs, max_step_tokens=budget)
        self.alive: list[Sequence] = []
        self.num_added = 0

    @rule(num_prompt_tokens=st.integers(1, 16), num_journaled=st.integers(0, 3))
    def add(self, num_prompt_tokens: int, num_journaled: int) -> None:
        self.num_added += 1
        sequence = Sequence(
            request_id=str(self.num_added),
            choice=0,
            arrival=self.num_added,
            params=SamplingParams(max_tokens=CAPACITY_BLOCKS * BLOCK - num_prompt_tokens, seed=0),
            stop_ids=frozenset({EOS_ID}),
            detokenizer=Detokenizer(LetterDecoder(), ()),
            token_ids=[1] * (num_prompt_tokens + num_journaled),
            num_prompt_tokens=num_prompt_tokens,
        )
        self.alive.append(sequence)
        self.scheduler.add(sequence)

    @rule(ends=st.sets(st.integers(0, 4), max_size=2), times=st.integers(1, 8))
    def step(self, ends: set[int], times: int) -> None:
        """The sampled with an index in `ends` finish in the last of the steps."""
        for turn in range(times):
            self._step(ends if turn == times - 1 else set())

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        sequence = self.alive.pop(data.draw(st.integers(0, len(self.alive) - 1)))
        self.scheduler.drop(sequence)
        assert sequence.block_table == []

    @invariant()
    def books_are_straight(self) -> None:
        check_blocks(self.scheduler)
        assert all(s.num_tokens_to_compute == 1 for s in self.scheduler.running[:-1]), "a prefill before a decode"
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
        schedule = self.scheduler.schedule()
        assert schedule.budget >= 0
        assert sum(schedule.chunks.values()) + schedule.budget == self.scheduler.max_step_tokens
        assert bool(schedule.chunks) == bool(self.alive)
        assert not set(schedule.preempted) & set(schedule.chunks)
        for sequence, num_tokens in schedule.chunks.items():
            assert len(sequence.block_table) * BLOCK >= sequence.num_computed_tokens + num_tokens
        self.scheduler.update(schedule, [EOS_ID if i in ends else 1 for i in range(len(schedule.sampled))])
        self.alive = [sequence for sequence in self.alive if sequence.finish_reason is None]


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
