from __future__ import annotations

import pytest

from shared.errors import ConfigurationError
from tests.unit.worker.engine.driving import make_sequence
from worker.engine.kv_cache_manager import KVCacheManager


def test_table_has_just_the_blocks_its_tokens_need() -> None:
    kv = KVCacheManager(num_blocks=6, block_size=4)
    sequence = make_sequence(8)
    kv.admit(sequence, kv.fit(sequence))
    assert len(sequence.block_table) == 2
    assert (kv.try_grow(sequence), len(sequence.block_table), kv.num_used) == (True, 3, 3)


def test_not_now_changes_nothing() -> None:
    kv = KVCacheManager(num_blocks=3, block_size=4)
    sequence = make_sequence(8)
    kv.admit(sequence, kv.fit(sequence))
    table = list(sequence.block_table)
    assert not kv.try_grow(sequence)
    assert (sequence.block_table, kv.num_used) == (table, 2)


def test_looking_whether_it_fits_changes_nothing() -> None:
    kv = KVCacheManager(num_blocks=6, block_size=4)
    sequence = make_sequence(9)
    assert kv.fit(sequence).num_taken == 3
    assert (sequence.block_table, kv.num_used) == ([], 0)


def test_freed_sequence_gets_a_new_table() -> None:
    kv = KVCacheManager(num_blocks=3, block_size=4)
    sequence = make_sequence(8)
    kv.admit(sequence, kv.fit(sequence))
    table = sequence.block_table
    kv.free(sequence)
    assert sequence.block_table == [] and sequence.block_table is not table
    assert kv.num_used == 0


def test_one_block_in_a_hundred_is_kept_free_unless_told_otherwise() -> None:
    assert KVCacheManager(num_blocks=1000, block_size=4).watermark_blocks == 10


def test_cache_that_holds_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        KVCacheManager(num_blocks=1, block_size=16)
