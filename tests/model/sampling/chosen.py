"""Samples rows of logits with parameters given by name: a scalar holds for every row, positions count up."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from worker.model.sampling.rows import NO_LOGPROBS, SamplingRows
from worker.model.sampling.sampler import choose


def rows_of(num_rows: int, **changes: Any) -> SamplingRows:
    def column(name: str, default: Any, dtype: type) -> np.ndarray:
        return np.broadcast_to(np.asarray(changes.get(name, default), dtype), num_rows).copy()

    return SamplingRows(
        samples=np.arange(num_rows),
        positions=column("positions", np.arange(num_rows), np.int64),
        temperature=column("temperature", 1.0, np.float32),
        top_p=column("top_p", 1.0, np.float32),
        top_k=column("top_k", 0, np.int64),
        min_p=column("min_p", 0.0, np.float32),
        seed=column("seed", 7, np.uint64),
        choice=column("choice", 0, np.int64),
        num_logprobs=column("num_logprobs", NO_LOGPROBS, np.int64),
        **{name: changes.get(name) for name in ("edits", "banned_rows", "banned_ids", "masks", "given")},
    )


def chosen(logits: torch.Tensor, **changes: Any) -> np.ndarray:
    """The token of each row of `logits` [rows, vocab]."""
    num_rows = len(logits)
    return choose(np.zeros(num_rows, np.int64), logits, np.arange(num_rows), rows_of(num_rows, **changes)).token_ids


def draws(logits: torch.Tensor, num_draws: int, **changes: Any) -> np.ndarray:
    """Many positions of one row of logits [vocab]."""
    return chosen(logits.unsqueeze(0).expand(num_draws, -1), **changes)


def assert_distributed(drawn: np.ndarray, expected: torch.Tensor) -> None:
    """Chi-square within 4.5 standard deviations of its mean. Seeds are fixed: no run differs from another."""
    kept = expected.double().numpy() * len(drawn)
    counts = np.bincount(drawn, minlength=len(kept))
    assert counts[kept == 0].sum() == 0
    freedom = (kept > 0).sum() - 1
    chi_square = (((counts - kept) ** 2)[kept > 0] / kept[kept > 0]).sum()
    assert abs(chi_square - freedom) <= 4.5 * np.sqrt(2 * freedom)
