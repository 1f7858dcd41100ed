from __future__ import annotations

import pytest

from worker.engine.scheduling.prompt_lookup import PromptLookup


@pytest.mark.parametrize(
    ("token_ids", "drafts"),
    [
        ([1, 2, 3, 4, 5, 6, 9, 1, 2, 3], [4, 5, 6]),  # what followed
        ([1, 2, 3, 4, 7, 1, 2, 3, 5, 8, 1, 2, 3], [5, 8, 1]),  # the latest time
        ([1, 2, 3, 4, 5, 2, 3, 6, 6, 1, 2, 3], [4, 5, 2]),  # three tokens before two
        ([9, 2, 3, 4, 8, 2, 3], [4, 8, 2]),  # two are enough
        ([7, 1, 2, 1, 2], [1, 2, 1]),  # into itself
        ([5, 5, 5], [5, 5, 5]),
        ([1, 2, 3, 4], []),
        ([4, 1, 4], []),  # one is not
        ([1], []),
    ],
)
def test_drafts_are_what_followed_the_same_tokens(token_ids: list[int], drafts: list[int]) -> None:
    assert PromptLookup().propose(token_ids, 3) == drafts


def test_a_lookup_that_follows_its_sequence_proposes_what_a_new_one_would() -> None:
    lookup, token_ids = PromptLookup(), list[int]()
    for step in range(200):
        token_ids += [step * step % 7] * (1 + step % 3)
        assert lookup.propose(token_ids, 4) == PromptLookup().propose(token_ids, 4)
