"""Tokens chosen without a wait are those the sampler chooses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.model.sampling.chosen import rows_of
from worker.engine.request import NOT_FINITE
from worker.model.cuda.choosing import PendingTokens
from worker.model.sampling.rows import NOT_GIVEN, BitArray, IntArray, LogitEdits, SamplingRows, StepTokens
from worker.model.sampling.sampler import sample

LOGITS = torch.randn(40, 3000, generator=torch.Generator().manual_seed(1)) * 3
KEYS = np.random.default_rng(2)


class Masks:
    """Rows 1 and 4 may take a token below 64 only."""

    rows = np.array([1, 4])

    def wait(self) -> BitArray:
        return np.array([[0xFFFF_FFFF, 0xFFFF_FFFF]] * 2, np.uint32)


MIXED: dict[str, Any] = {
    "temperature": KEYS.choice([0.0, 0.7, 1.3], 40),
    "top_p": KEYS.choice([1.0, 0.9, 0.2], 40),
    "top_k": KEYS.choice([0, 3, 100], 40),
    "min_p": KEYS.choice([0.0, 0.02], 40),
    "seed": KEYS.integers(0, 2**63, 40),
}
PARAMETERS: dict[str, dict[str, Any]] = {
    "all drawn": {},
    "mixed": MIXED,
    "logprobs": {**MIXED, "num_logprobs": KEYS.choice([-1, 0, 4], 40)},
    "given": {**MIXED, "num_logprobs": 3, "given": np.where(np.arange(40) % 3, np.arange(40) * 7, NOT_GIVEN)},
    "edited": {
        "edits": LogitEdits(np.arange(40), np.full(40, 7), np.full(40, 1.5, np.float32), np.full(40, 9, np.float32)),
        "banned_rows": np.arange(40),
        "banned_ids": LOGITS.argmax(-1).numpy(),
        "temperature": KEYS.choice([0.0, 1.0], 40),
    },
    "masked": {"masks": Masks(), "temperature": KEYS.choice([0.0, 1.0], 40)},
    "kept sets beyond those looked at": {"top_p": 0.99, "temperature": 4.0, "num_logprobs": 2},
}


def both(logits: torch.Tensor, rows: IntArray, sampling: SamplingRows | None) -> tuple[StepTokens, StepTokens]:
    return PendingTokens(logits, rows, sampling).wait(), sample(logits, rows, sampling)


def assert_same(mine: StepTokens, theirs: StepTokens) -> None:
    assert mine.token_ids.tolist() == theirs.token_ids.tolist()
    assert (mine.logprobs is None) == (theirs.logprobs is None)
    if mine.logprobs is not None and theirs.logprobs is not None:
        for field in ("samples", "num_top", "chosen", "top_ids", "top"):
            assert np.array_equal(getattr(mine.logprobs, field), getattr(theirs.logprobs, field)), field


@pytest.mark.parametrize("changes", PARAMETERS.values(), ids=list(PARAMETERS))
def test_they_are_the_samplers(changes: dict[str, Any]) -> None:
    with torch.inference_mode():  # as a runner launches, and not as it waits
        pending = PendingTokens(LOGITS * 1, np.arange(40), rows_of(40, **changes))
    mine, theirs = pending.wait(), sample(LOGITS, np.arange(40), rows_of(40, **changes))
    assert_same(mine, theirs)
    assert mine.token_ids.tolist() != LOGITS.argmax(-1).tolist()


def test_a_single_row_is_drawn_as_it_is_among_others() -> None:
    together, _ = both(LOGITS, np.arange(40), rows_of(40, **MIXED))
    for row in range(5):
        own = {name: column[row : row + 1] for name, column in MIXED.items()}
        alone, _ = both(LOGITS[row : row + 1], np.zeros(1, np.int64), rows_of(1, positions=[row], **own))
        assert alone.token_ids[0] == together.token_ids[row]


def test_greedy_samples_beside_drawn_ones_that_share_logits() -> None:
    sampling = rows_of(3, choice=np.arange(3), top_k=50)
    sampling.samples = np.array([1, 2, 4])
    mine, theirs = both(LOGITS[:2], np.array([0, 0, 1, 1, 1]), sampling)
    assert_same(mine, theirs)
    assert mine.token_ids[0] == LOGITS[0].argmax()


def test_what_is_not_finite_is_marked_and_stays_alone() -> None:
    logits = LOGITS[:6].clone()
    logits[2] = torch.nan
    logits[5, 3] = torch.inf
    sampling = rows_of(4, num_logprobs=1)
    sampling.samples = np.array([1, 2, 3, 5])
    mine, theirs = both(logits, np.arange(6), sampling)
    assert mine.token_ids.tolist() == theirs.token_ids.tolist()
    assert (mine.token_ids == NOT_FINITE).tolist() == [False, False, True, False, False, True]
