"""The sampler: right distribution, kept sets, and draws that hang on (seed, choice, position) alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from worker.model.runner import StepBatch
from worker.model.sampler import sample, uniforms

EMPTY = np.empty(0, np.int64)


def params(num_samples: int, **changes: Any) -> StepBatch:
    """A StepBatch of which the sampler reads the last rows. Positions count up; a scalar holds for every row."""

    def column(name: str, default: Any, dtype: type) -> np.ndarray:
        return np.broadcast_to(np.asarray(changes.get(name, default), dtype), num_samples).copy()

    return StepBatch(
        token_ids=EMPTY,
        positions=EMPTY,
        slot_mapping=EMPTY,
        query_start=EMPTY,
        seq_lens=EMPTY,
        block_tables=np.empty((0, 0), np.int64),
        sample_seqs=EMPTY,
        sample_positions=column("sample_positions", np.arange(num_samples), np.int64),
        temperature=column("temperature", 1.0, np.float32),
        top_p=column("top_p", 1.0, np.float32),
        top_k=column("top_k", 0, np.int64),
        seed=column("seed", 7, np.uint64),
        choice=column("choice", 0, np.int64),
    )


def draws(logits: torch.Tensor, num_samples: int, **changes: Any) -> np.ndarray:
    """Many positions of one row of logits [vocab]."""
    rows = logits.unsqueeze(0).expand(num_samples, -1)
    return sample(rows, np.arange(num_samples), params(num_samples, **changes))


def assert_distributed(drawn: np.ndarray, expected: torch.Tensor) -> None:
    """Chi-square within 4.5 standard deviations of its mean. Seeds are fixed: no run differs from another."""
    kept = expected.double().numpy() * len(drawn)
    counts = np.bincount(drawn, minlength=len(kept))
    assert counts[kept == 0].sum() == 0
    freedom = (kept > 0).sum() - 1
    chi_square = (((counts - kept) ** 2)[kept > 0] / kept[kept > 0]).sum()
    assert abs(chi_square - freedom) <= 4.5 * np.sqrt(2 * freedom)


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


def test_a_draw_depends_on_its_own_row_alone() -> None:
    generator = np.random.default_rng(3)
    logits = torch.randn(64, 3000, generator=torch.Generator().manual_seed(2))
    keys = {
        "temperature": generator.choice([0.0, 0.7, 1.3], 64),
        "top_p": generator.choice([1.0, 0.9, 0.2], 64),
        "top_k": generator.choice([0, 3, 1000], 64),
        "seed": generator.integers(0, 2**63, 64),
        "choice": generator.integers(0, 4, 64),
        "sample_positions": generator.integers(0, 9000, 64),
    }
    together = sample(logits, np.arange(64), params(64, **keys))
    for size in (1, 2, 5, 64):
        rows = generator.permutation(64)[:size]
        apart = sample(logits, rows, params(size, **{name: column[rows] for name, column in keys.items()}))
        assert apart.tolist() == together[rows].tolist()


def test_greedy_rows_take_the_argmax_beside_drawn_ones() -> None:
    logits = torch.randn(50, 300, generator=torch.Generator().manual_seed(4))
    temperature = np.arange(50) % 2
    drawn = sample(logits, np.arange(50), params(50, temperature=temperature))
    best = logits.argmax(-1).numpy()
    assert (drawn[temperature == 0] == best[temperature == 0]).all()
    assert (drawn[temperature == 1] != best[temperature == 1]).any()


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
