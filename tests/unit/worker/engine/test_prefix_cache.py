from __future__ import annotations

import pytest

from tests.unit.worker.engine.driving import BLOCK, make_sequence
from worker.engine import prefix_cache
from worker.engine.kv_cache_manager import CacheScope, KVCacheManager
from worker.engine.prefix_cache import Chain, PrefixCache
from worker.engine.request import Sequence


def make_manager(num_blocks: int = 20, scope: CacheScope = CacheScope.TENANT) -> KVCacheManager:
    return KVCacheManager(num_blocks=num_blocks + 1, block_size=BLOCK, watermark_blocks=0, scope=scope)


def run(kv: KVCacheManager, token_ids: list[int], salt: bytes | None = b"") -> Sequence:
    """A sequence that has computed all it has."""
    sequence = make_sequence(token_ids, chain=Chain(salt))
    kv.admit(sequence, kv.fit(sequence))
    kv.advance(sequence, sequence.num_tokens_to_compute)
    return sequence


def found(kv: KVCacheManager, token_ids: list[int], salt: bytes | None = b"") -> int:
    """In blocks."""
    return len(kv.fit(make_sequence(token_ids, chain=Chain(salt))).found)


def test_full_blocks_of_a_common_prefix_are_found() -> None:
    kv = make_manager()
    first = run(kv, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    assert kv.fit(make_sequence([1, 2, 3, 4, 5, 6, 7, 8, 9, 99])).found == first.block_table[:2]
    assert found(kv, [1, 2, 3, 4, 5, 6, 7, 99, 9, 10]) == 1
    assert found(kv, [99, 2, 3, 4, 5, 6, 7, 8, 9, 10]) == 0


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(7, 1), (8, 1), (9, 2)])
def test_the_last_token_is_always_left_to_compute(num_tokens: int, num_blocks: int) -> None:
    kv = make_manager()
    run(kv, list(range(8)))
    assert found(kv, list(range(num_tokens))) == num_blocks


def test_blocks_of_running_sequences_are_shared_without_a_copy() -> None:
    kv = make_manager()
    first, second = run(kv, list(range(10))), run(kv, [*range(8), 77])
    assert second.block_table[:2] == first.block_table[:2]
    assert kv.num_used == 4
    kv.free(first)
    assert kv.num_used == 3


def test_freed_blocks_are_found_until_they_are_given_out_anew() -> None:
    kv = make_manager(4)
    kv.free(run(kv, list(range(16))))
    assert found(kv, [*range(16), 1]) == 4
    run(kv, [50, 51, 52, 53, 54])
    assert found(kv, [*range(16), 1]) == 2, "the tail of the chain went first"


def test_a_block_found_again_is_older_than_none() -> None:
    kv = make_manager(4)
    kv.free(run(kv, list(range(8))))
    kv.free(run(kv, list(range(100, 108))))
    kv.free(run(kv, list(range(8))))
    run(kv, list(range(200, 208)))
    assert (found(kv, [*range(8), 1]), found(kv, [*range(100, 108), 1])) == (2, 0)


def test_a_block_is_known_only_when_its_last_token_is_computed() -> None:
    kv = make_manager()
    sequence = make_sequence(list(range(8)))
    kv.admit(sequence, kv.fit(sequence))
    kv.advance(sequence, 7)
    assert found(kv, [*range(8), 1]) == 1
    kv.advance(sequence, 1)
    assert found(kv, [*range(8), 1]) == 2


def test_generated_tokens_are_found_by_the_next_turn() -> None:
    kv = make_manager()
    sequence = run(kv, [1, 2, 3, 4, 5, 6])
    kv.try_grow(sequence)
    for token_id in (7, 8, 9):
        sequence.token_ids.append(token_id)
        kv.advance(sequence, 1)
    kv.free(sequence)
    assert found(kv, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]) == 2


def test_tenants_share_nothing_unless_they_are_told_to() -> None:
    by_tenant, by_all = make_manager(), make_manager(scope=CacheScope.SHARED)
    tokens = list(range(9))
    run(by_tenant, tokens, by_tenant.salt_of("a"))
    run(by_all, tokens, by_all.salt_of("a"))
    assert (found(by_tenant, tokens, by_tenant.salt_of("a")), found(by_tenant, tokens, by_tenant.salt_of("b"))) == (
        2,
        0,
    )
    assert found(by_all, tokens, by_all.salt_of("b")) == 2


def test_off_finds_nothing_and_keeps_nothing() -> None:
    kv = make_manager(scope=CacheScope.OFF)
    run(kv, list(range(9)), kv.salt_of("a"))
    assert (found(kv, list(range(9)), kv.salt_of("a")), len(kv.cache)) == (0, 0)


class CollidingDigest:
    """Every content has the digest of its last token only."""

    def __init__(self, data: bytes, *, digest_size: int) -> None:
        self._digest = data[-4:] * (digest_size // 4)

    def digest(self) -> bytes:
        return self._digest


def test_a_collision_is_no_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tokens under the same digest; and the same tokens after another parent."""
    monkeypatch.setattr(prefix_cache, "blake2b", CollidingDigest)
    kv = make_manager()
    run(kv, [1, 2, 3, 4, 5, 6, 7, 8])
    assert found(kv, [9, 9, 9, 4, 5, 6, 7, 8, 1]) == 0
    run(kv, [9, 9, 9, 4, 5, 6, 7, 8])
    assert found(kv, [9, 9, 9, 4, 5, 6, 7, 8, 1]) == 2
    assert found(kv, [1, 2, 3, 4, 5, 6, 7, 8, 1]) == 0, "the later one took the digest"


def test_a_child_does_not_outlive_its_parent() -> None:
    """The same tokens computed again make another parent: what hung on the first is not found."""
    cache, chain = PrefixCache(9, BLOCK), Chain(b"")
    tokens = list(range(9))
    cache.open(chain, tokens, [])
    cache.store(chain, tokens, [1, 2, 3], 8)
    cache.forget([1])
    again = Chain(b"")
    cache.open(again, tokens[:5], [])
    cache.store(again, tokens[:5], [4, 5], 4)
    assert cache.find(Chain(b""), tokens) == [4]


def test_content_known_already_keeps_its_block() -> None:
    kv = make_manager()
    first, second = make_sequence(list(range(9))), make_sequence(list(range(9)))
    for sequence in (first, second):
        kv.admit(sequence, kv.fit(sequence))
    for sequence in (first, second):
        kv.advance(sequence, 9)
    assert kv.fit(make_sequence(list(range(9)))).found == first.block_table[:2]
    assert not set(first.block_table) & set(second.block_table)


def test_a_hit_on_free_blocks_takes_them_from_the_free_ones() -> None:
    kv = make_manager(5)
    kv.free(run(kv, list(range(8))))
    running = run(kv, list(range(50, 54)))
    assert kv.fit(make_sequence([*range(8), 1])).num_taken == 3
    assert kv.fit(make_sequence([*range(50, 54), 1])).num_taken == 1
    assert kv.num_own_blocks(running) == 1
