"""Draws: right distribution, kept sets, and tokens that hang on a row's own logits and key alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.model.sampling.chosen import assert_distributed, chosen, draws, rows_of
from worker.model.sampling.draws import uniforms
from worker.model.sampling.sampler import choose, sample

LOGITS = torch.randn(20, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_draws_follow_the_softmax(temperature: float) -> None:
    drawn = draws(LOGITS, 20_000, temperature=temperature)
    assert_distributed(drawn, torch.softmax(LOGITS / temperature, -1))


@pytest.mark.parametrize(("top_k", "top_p"), [(5, 1.0), (0, 0.6), (8, 0.5), (1, 1.0), (0, 0.0), (50, 0.9)])
def test_top_k_then_top_p_keep_the_likeliest(top_k: int, top_p: float) -> None:
    kept = torch.softmax(LOGITS, -1)
    if top_k:
        kept = torch.where(kept >= kept.sort(descending=True).values[min(top_k, 20) - 1], kept, 0)
        kept /= kept.sum()
    before = torch.stack([kept[kept > p].sum() for p in kept])
    kept = torch.where((before < top_p) | (kept == kept.max()), kept, 0)
    assert_distributed(draws(LOGITS, 20_000, top_k=top_k, top_p=top_p), kept / kept.sum())


@pytest.mark.parametrize("limits", [{"top_p": 0.9}, {"top_k": 1500}, {"top_k": 1500, "top_p": 0.9}])
def test_sets_wider_than_the_candidates_are_whole(limits: dict[str, float]) -> None:
    logits = torch.linspace(1, 0, 2000)
    probs = torch.softmax(logits, -1)
    size = int(limits.get("top_k", 2000))
    mass = probs[:size].cumsum(0) / probs[:size].sum()
    size = min(size, int((mass < limits.get("top_p", 1.0)).sum()) + 1)
    drawn = draws(logits, 4000, **limits)
    assert drawn.max() < size
    assert_distributed(
        drawn // 100, torch.nn.functional.pad(probs[:size], (0, 2000 - size)).view(20, 100).sum(1) / probs[:size].sum()
    )


@pytest.mark.parametrize("min_p", [0.05, 0.3, 1.0])
def test_min_p_keeps_what_is_near_the_likeliest(min_p: float) -> None:
    probs = torch.softmax(LOGITS, -1)
    kept = torch.where(probs >= min_p * probs.max(), probs, 0)
    assert_distributed(draws(LOGITS, 20_000, min_p=min_p), kept / kept.sum())


def test_min_p_comes_before_top_p() -> None:
    probs = torch.tensor([0.5, 0.3, 0.1, 0.1])
    drawn = draws(probs.log(), 4000, min_p=0.5, top_p=0.65)  # of 0.5 and 0.3 the first has 0.625 of the mass
    assert_distributed(drawn, torch.tensor([0.625, 0.375, 0, 0]))
    assert set(draws(probs.log(), 500, min_p=0.5, top_p=0.6)) == {0}


def test_a_draw_depends_on_its_own_row_alone() -> None:
    generator = np.random.default_rng(3)
    logits = torch.randn(64, 3000, generator=torch.Generator().manual_seed(2))
    keys = {
        "temperature": generator.choice([0.0, 0.7, 1.3], 64),
        "top_p": generator.choice([1.0, 0.9, 0.2], 64),
        "top_k": generator.choice([0, 3, 1000], 64),
        "min_p": generator.choice([0.0, 0.02], 64),
        "seed": generator.integers(0, 2**63, 64),
        "choice": generator.integers(0, 4, 64),
        "positions": generator.integers(0, 9000, 64),
    }
    together = chosen(logits, **keys)
    for size in (1, 2, 5, 64):
        rows = generator.permutation(64)[:size]
        apart = chosen(logits[rows], **{name: column[rows] for name, column in keys.items()})
        assert apart.tolist() == together[rows].tolist()


def test_only_samples_that_ask_for_it_are_drawn() -> None:
    logits = torch.randn(50, 300, generator=torch.Generator().manual_seed(4))
    sampling = rows_of(25)
    sampling.samples = np.arange(1, 50, 2)
    token_ids = sample(logits, np.arange(50), sampling).token_ids
    best = logits.argmax(-1).numpy()
    assert (token_ids[::2] == best[::2]).all()
    assert (token_ids[1::2] != best[1::2]).any()
    assert sample(logits, np.arange(50), None).token_ids.tolist() == best.tolist()


def test_rows_may_share_logits() -> None:
    """The choices of one request, at their first token."""
    logits = torch.randn(2, 300, generator=torch.Generator().manual_seed(4))
    shared = np.array([1, 0, 1, 1])
    token_ids = choose(np.zeros(4, np.int64), logits, shared, rows_of(4, choice=np.arange(4))).token_ids
    assert token_ids.tolist() == chosen(logits[shared], choice=np.arange(4)).tolist()


@pytest.mark.parametrize("temperature", [1e-6, 1e-30])
def test_the_smallest_temperatures_are_greedy(temperature: float) -> None:
    logits = torch.tensor([3.0, 90.0, 89.9, -500.0])
    assert set(draws(logits, 100, temperature=temperature)) == {1}


def test_impossible_tokens_are_never_drawn() -> None:
    logits = torch.full((100,), -torch.inf)
    logits[[17, 60]] = 0
    assert set(draws(logits, 2000)) == {17, 60}
    assert set(draws(logits, 2000, top_p=0.99)) == {17, 60}


def test_uniforms_are_even_and_tell_keys_apart() -> None:
    seed, choice, position = (axis.ravel() for axis in np.meshgrid(np.arange(20), np.arange(10), np.arange(100)))
    numbers = uniforms(seed.astype(np.uint64), choice, position)
    assert len(set(numbers)) == 20_000
    assert_distributed((numbers * 50).astype(np.int64), torch.full((50,), 1 / 50))
    assert numbers.min() >= 0 and numbers.max() < 1


def test_uniforms_never_change() -> None:
    """A request resumed by a newer worker must draw on as before."""
    numbers = uniforms(np.array([0, 1, 2**64 - 1], np.uint64), np.array([0, 1, 7]), np.array([0, 5, 8191]))
    assert numbers.tolist() == [0.13870941014555427, 0.9776843851135641, 0.24147326838852268]
