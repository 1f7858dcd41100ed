"""Where prompts are cut: what a next turn asks for is what the last turn left, and of long prompts not much is left."""

from __future__ import annotations

import random

import pytest

from shared.text.prefixes import FIRST, Prefixes, prefixes_of

RNG = random.Random(1)
TOKENS = tuple(RNG.randrange(50_000) for _ in range(140_000))


@pytest.mark.parametrize("length", [128, 129, 200, 500, 1023, 1024, 1500, 5000, 130_000])
def test_the_next_turn_asks_for_where_the_last_one_was_cut(length: int) -> None:
    last, following = prefixes_of(TOKENS[:length], "t"), prefixes_of(TOKENS[: length + 50], "t")
    assert last.left[-1] == last.asked[0]
    assert set(last.left) <= set(following.asked)


def test_another_conversation_shares_what_it_shares_and_no_more() -> None:
    shared, one, two = TOKENS[:300], TOKENS[1000:1300], TOKENS[2000:2300]
    first, second = prefixes_of(shared + one, "t"), prefixes_of(shared + two, "t")
    assert [hash_ in second.asked for hash_ in first.left] == [True, True, False, False]  # 128, 256, 512 and the last


def test_tenants_are_apart_unless_they_share_a_salt() -> None:
    assert not set(prefixes_of(TOKENS[:500], "a").asked) & set(prefixes_of(TOKENS[:500], "b").asked)


def test_short_prompts_have_none_and_long_ones_few() -> None:
    assert prefixes_of(TOKENS[: FIRST - 1], "t") == Prefixes()
    assert len(prefixes_of(TOKENS[:2048], "t").asked) == 45
    assert len(prefixes_of(TOKENS[:131_072], "t").asked) == 45 + 16 * 6
    # A hash in Redis whose longest value is over 64 bytes takes several times the memory.
    assert len(" ".join(prefixes_of(TOKENS[:131_072], "t").left)) < 64
