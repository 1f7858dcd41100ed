"""Logprobs: the model's own, to the last digit told, whatever parameters and neighbours do."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.model.sampling.chosen import rows_of
from worker.engine.request import NOT_FINITE
from worker.model.sampling.rows import NOT_GIVEN, StepLogprobs
from worker.model.sampling.sampler import choose

LOGITS = torch.randn(6, 5000, generator=torch.Generator().manual_seed(5)) * 4


def made(logits: torch.Tensor, rows: list[int], **changes: Any) -> tuple[np.ndarray, StepLogprobs]:
    sampling = rows_of(len(rows), **changes)
    step = choose(np.zeros(len(rows), np.int64), logits, np.array(rows), sampling)
    assert step.logprobs is not None
    return step.token_ids, step.logprobs


def test_they_are_the_log_softmax_of_the_logits() -> None:
    token_ids, logprobs = made(LOGITS, [0, 1, 2], num_logprobs=5, temperature=1.3, top_p=0.9, top_k=3)
    expected = torch.log_softmax(LOGITS[:3].double(), -1)
    assert np.allclose(logprobs.chosen, expected.numpy()[np.arange(3), token_ids], atol=1e-6)
    best = expected.topk(5)
    assert logprobs.top_ids[:, :5].tolist() == best.indices.tolist()
    assert np.allclose(logprobs.top[:, :5], best.values.numpy(), atol=1e-6)


def test_penalties_bans_and_masks_do_not_enter() -> None:
    best = LOGITS.argmax(-1).numpy()
    banned = {"banned_rows": np.arange(2), "banned_ids": best[:2]}
    token_ids, logprobs = made(LOGITS, [0, 1], num_logprobs=1, temperature=0, **banned)
    assert (token_ids != best[:2]).all()
    assert logprobs.top_ids[:, 0].tolist() == best[:2].tolist()
    assert (logprobs.chosen < logprobs.top[:, 0]).all()


def test_of_a_given_token_they_are_its_own_whatever_is_chosen() -> None:
    given = np.array([NOT_GIVEN, 4321, 7])
    token_ids, logprobs = made(LOGITS, [0, 1, 2], num_logprobs=1, temperature=0, given=given)
    assert token_ids.tolist() == LOGITS[:3].argmax(-1).tolist()
    expected = torch.log_softmax(LOGITS[:3].double(), -1).numpy()
    assert np.allclose(logprobs.chosen, expected[np.arange(3), [token_ids[0], 4321, 7]], atol=1e-6)


def test_only_samples_that_ask_have_them() -> None:
    _, logprobs = made(LOGITS, [0, 1, 2, 3], num_logprobs=[-1, 0, -1, 7])
    assert (logprobs.samples.tolist(), logprobs.num_top.tolist()) == ([1, 3], [0, 7])


def test_neighbours_change_no_bit() -> None:
    _, together = made(LOGITS, [0, 1, 2, 3, 4, 5], num_logprobs=[0, 20, 3, 1, 0, 5])
    for row in range(6):
        _, apart = made(LOGITS[row : row + 1], [0], num_logprobs=2, positions=row)
        assert apart.chosen.tolist() == together.chosen[row : row + 1].tolist()
        assert apart.top_ids.tolist() == together.top_ids[row : row + 1].tolist()
        assert apart.top.tolist() == together.top[row : row + 1].tolist()


def test_what_cannot_be_is_a_finite_number() -> None:
    logits = torch.full((1, 40), -torch.inf)
    logits[0, 3] = 5
    _, logprobs = made(logits, [0], num_logprobs=4)
    assert logprobs.chosen.tolist() == [0.0] and logprobs.top[0, :2].tolist() == [0.0, -9999.0]
    step = choose(np.array([NOT_FINITE]), torch.full((1, 40), torch.nan), np.array([0]), rows_of(1, num_logprobs=1))
    assert step.token_ids.tolist() == [NOT_FINITE] and step.logprobs is not None
    assert np.isfinite(step.logprobs.chosen).all()


def test_equal_logits_are_listed_in_one_order_however_many_are_asked() -> None:
    logits = torch.zeros(1, 300)
    _, few = made(logits, [0], num_logprobs=1)
    _, many = made(logits, [0], num_logprobs=20)
    assert few.top_ids.tolist() == many.top_ids.tolist()
