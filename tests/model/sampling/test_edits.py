"""Penalties, biases, bans and masks, each against its formula written plainly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from shared.schemas import SamplingParams
from tests.model.sampling.chosen import assert_distributed, chosen, draws, rows_of
from worker.model.sampling.edits import edit
from worker.model.sampling.rows import BitArray, IntArray, LogitEdits
from worker.model.sampling.tally import TokenTally

VOCAB = 50
PROMPT = [3, 4, 4]
MADE = [4, 7, 7, 7]


class Masks:
    def __init__(self, rows: list[int], allowed: list[list[int]], vocab: int = VOCAB) -> None:
        self.rows: IntArray = np.array(rows)
        bits = np.zeros((len(rows), -(-vocab // 32) * 32), np.uint8)
        for row, ids in enumerate(allowed):
            bits[row, ids] = 1
        self._bits: BitArray = np.packbits(bits, axis=1, bitorder="little").view(np.uint32)

    def wait(self) -> BitArray:
        return self._bits


def logits(rows: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def edits_of(*params: dict[str, Any]) -> LogitEdits:
    """One row for each of `params`, all with the same tokens."""
    entries = []
    for changes in params:
        tally = TokenTally(SamplingParams(max_tokens=9, seed=0, **changes), len(PROMPT))
        tally.feed(PROMPT + MADE)
        entries.append(tally.entries())
    rows = np.repeat(np.arange(len(entries)), [len(ids) for ids, _, _ in entries])
    return LogitEdits(rows, *(np.concatenate(column) for column in zip(*entries, strict=True)))


def edited(before: torch.Tensor, **changes: object) -> torch.Tensor:
    after = before.clone()
    edit(after, rows_of(len(before), **changes))
    return after


@pytest.mark.parametrize(("presence", "frequency"), [(0.5, 0.0), (0.0, 0.3), (-1.0, 1.5)])
def test_presence_and_frequency_count_what_was_made(presence: float, frequency: float) -> None:
    before = logits()
    expected = before.clone()
    expected[0, 4] -= presence + frequency
    expected[0, 7] -= presence + 3 * frequency
    params = {"presence_penalty": presence, "frequency_penalty": frequency}
    torch.testing.assert_close(edited(before, edits=edits_of(params)), expected)


def test_repetition_scales_what_the_prompt_has_and_what_was_made() -> None:
    before = logits()
    expected = before.clone()
    for token_id in (3, 4, 7):
        expected[0, token_id] = before[0, token_id] / 1.5 if before[0, token_id] > 0 else before[0, token_id] * 1.5
    assert bool((before[0, [3, 4, 7]] > 0).any()) and bool((before[0, [3, 4, 7]] < 0).any())
    torch.testing.assert_close(edited(before, edits=edits_of({"repetition_penalty": 1.5})), expected)


def test_a_bias_is_added_beside_penalties() -> None:
    before = logits()
    expected = before.clone()
    expected[0, 7] += 2 - 3 * 0.5
    expected[0, 4] -= 0.5
    expected[0, 9] -= 100
    params = {"logit_bias": ((7, 2.0), (9, -100.0)), "frequency_penalty": 0.5}
    torch.testing.assert_close(edited(before, edits=edits_of(params)), expected)


def test_rows_are_edited_apart() -> None:
    before = logits(2)
    params = {"presence_penalty": 1.0}, {"logit_bias": ((9, 5.0),), "repetition_penalty": 2.0}
    both = edited(before, edits=edits_of(*params))
    for row in (0, 1):
        assert torch.equal(both[row], edited(before[row : row + 1], edits=edits_of(params[row]))[0])


def test_banned_tokens_are_not_chosen() -> None:
    before = logits(2)
    best = before.argmax(-1).numpy()
    banned = {"banned_rows": np.array([1]), "banned_ids": best[1:]}
    token_ids = chosen(before, temperature=0, **banned)
    assert token_ids[0] == best[0] and token_ids[1] == before[1].topk(2).indices[1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_only_allowed_tokens_are_chosen(temperature: float) -> None:
    allowed = [5, 31, 32, 49]
    masks = Masks([1], [allowed])
    before = logits(3)
    tokens = [chosen(before, temperature=temperature, seed=seed, masks=masks)[1] for seed in range(40)]
    assert set(tokens) <= set(allowed)
    if temperature == 0:
        assert set(tokens) == {allowed[int(before[1, allowed].argmax())]}


def test_masked_draws_keep_the_proportions_of_what_is_left() -> None:
    row = logits()[0]
    allowed = [1, 2, 3, 40]
    masks = Masks(list(range(4000)), [allowed] * 4000)
    left = torch.full((VOCAB,), -torch.inf)
    left[allowed] = row[allowed]
    assert_distributed(draws(row, 4000, masks=masks), torch.softmax(left, -1))


def test_a_mask_shorter_than_the_logits_allows_nothing_beyond() -> None:
    assert chosen(logits(), temperature=0, masks=Masks([0], [[2, 9]], vocab=32))[0] in (2, 9)


def test_logits_given_are_not_changed() -> None:
    before = logits(2)
    kept = before.clone()
    chosen(before, edits=edits_of({"presence_penalty": 1.0}), masks=Masks([1], [[3]]))
    assert torch.equal(before, kept)
