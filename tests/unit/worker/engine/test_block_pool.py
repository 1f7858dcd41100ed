from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from worker.engine.block_pool import BlockPool


def test_scratch_block_is_never_given_out() -> None:
    pool = BlockPool(4)
    assert pool.try_allocate(3) == [1, 2, 3]
    assert pool.try_allocate(1) is None


def test_allocating_too_many_changes_nothing() -> None:
    pool = BlockPool(4)
    assert pool.try_allocate(4) is None
    assert (pool.num_free, pool.free_blocks()) == (3, [1, 2, 3])


def test_tail_of_a_table_is_reused_before_its_head() -> None:
    pool = BlockPool(4)
    table = pool.try_allocate(3)
    assert table is not None
    pool.free(table)
    assert pool.try_allocate(3) == [3, 2, 1]


def test_shared_block_is_free_when_the_last_table_lets_go() -> None:
    pool = BlockPool(3)
    assert pool.try_allocate(1) == [1]
    pool.share(1)
    pool.free([1])
    assert pool.num_free == 1
    pool.free([1])
    assert pool.num_free == 2


def test_free_block_can_be_revived_from_the_middle_of_the_list() -> None:
    pool = BlockPool(5)
    pool.share(2)
    assert pool.free_blocks() == [1, 3, 4]


def test_double_free_raises() -> None:
    pool = BlockPool(3)
    pool.try_allocate(1)
    pool.free([1])
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free([1])


class PoolAgainstNaiveModel(RuleBasedStateMachine):
    """The model is a list of tables and an ordered list of free blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(9)
        self.tables: list[list[int]] = []
        self.free = list(range(1, 9))

    @rule(count=st.integers(0, 5))
    def allocate(self, count: int) -> None:
        blocks = self.pool.try_allocate(count)
        if count > len(self.free):
            assert blocks is None
        else:
            assert blocks == self.free[:count]
            self.tables.append(self.free[:count])
            del self.free[:count]

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def free_table(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.free(table)
        self.free += [block for block in reversed(table) if not any(block in other for other in self.tables)]

    @rule(blocks=st.lists(st.integers(1, 8), unique=True))
    def share(self, blocks: list[int]) -> None:
        for block in blocks:
            self.pool.share(block)
            if block in self.free:
                self.free.remove(block)
        self.tables.append(blocks)

    @invariant()
    def agrees_with_the_model(self) -> None:
        counts = [sum(table.count(block) for table in self.tables) for block in range(9)]
        assert self.pool.references == counts
        assert self.pool.free_blocks() == self.free
        assert self.pool.num_free == len(self.free)


TestPoolAgainstNaiveModel = PoolAgainstNaiveModel.TestCase
TestPoolAgainstNaiveModel.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
