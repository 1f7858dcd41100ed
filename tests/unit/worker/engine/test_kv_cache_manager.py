from __future__ import annotations

import pytest

from shared.errors import ConfigurationError
from shared.schemas import SamplingParams
from tests.unit.worker.engine.harness import LetterDecoder
from worker.engine.detokenizer import Detokenizer
from worker.engine.kv_cache_manager import KVCacheManager
from worker.engine.request import Sequence


def make_sequence(num_tokens: int) -> Sequence:
    return Sequence(
        request_id="r",
        choice=0,
        arrival=0,
        params=SamplingParams(max_tokens=9, seed=0),
        stop_ids=frozenset(),
        detokenizer=Detokenizer(LetterDecoder(), ()),
        token_ids=[1] * num_tokens,
        num_prompt_tokens=num_tokens,
    )


def test_table_has_just_the_blocks_its_tokens_need() -> None:
    kv = KVCacheManager(num_blocks=6, block_size=4)
    sequence = make_sequence(8)
    assert (kv.try_allocate(sequence), len(sequence.block_table)) == (2, 2)
    assert kv.try_allocate(sequence) == 0
    sequence.token_ids.append(1)
    assert (kv.try_allocate(sequence), kv.num_used) == (1, 3)


def test_not_now_changes_nothing() -> None:
    kv = KVCacheManager(num_blocks=3, block_size=4)
    sequence = make_sequence(9)
    assert kv.try_allocate(sequence) is None
    assert (sequence.block_table, kv.num_used) == ([], 0)


def test_only_who_respects_the_watermark_is_stopped_by_it() -> None:
    kv = KVCacheManager(num_blocks=3, block_size=4, watermark_blocks=1)
    sequence = make_sequence(8)
    assert kv.try_allocate(sequence, keep_watermark=True) is None
    assert kv.try_allocate(sequence) == 2


def test_freed_sequence_gets_a_new_table() -> None:
    kv = KVCacheManager(num_blocks=3, block_size=4)
    sequence = make_sequence(8)
    kv.try_allocate(sequence)
    table = sequence.block_table
    kv.free(sequence)
    assert sequence.block_table == [] and sequence.block_table is not table
    assert kv.num_used == 0


def test_cache_that_holds_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        KVCacheManager(num_blocks=1, block_size=16)
