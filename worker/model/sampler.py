"""From logits to token ids.

Invariant: the token at position p of a choice is a function of its own logits, its parameters, and
(seed, choice, p). No generator has a state, so a batch, a preemption or a restart cannot change a draw.
Greedy rows take the argmax and no softmax. The others invert the cumulative distribution at one uniform
number hashed from the key; sums run along one row, in order, in fp64.
Source of the hash: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (SplitMix64).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from worker.model.runner import IntArray, StepBatch

# Wide enough for nearly every top-p; a row it is too narrow for is sorted whole. Constant, so that a row's
# draw does not depend on its neighbours.
_CANDIDATES = 512
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def sample(logits: torch.Tensor, row_of_sample: IntArray, batch: StepBatch) -> IntArray:
    """`logits` [rows, vocab], sample i reads row `row_of_sample[i]`. Returns token ids [num_samples]."""
    token_ids: IntArray = logits.argmax(-1).cpu().numpy()[row_of_sample]
    drawn = np.flatnonzero(batch.temperature > 0)
    if len(drawn):
        scores = logits[torch.from_numpy(row_of_sample[drawn]).to(logits.device)]
        numbers = uniforms(batch.seed[drawn], batch.choice[drawn], batch.sample_positions[drawn])
        probs = _probabilities(scores, batch.temperature[drawn])
        token_ids[drawn] = _draw(probs, batch.top_k[drawn], batch.top_p[drawn], numbers)
    return token_ids


def uniforms(seed: npt.NDArray[np.uint64], choice: IntArray, position: IntArray) -> npt.NDArray[np.float64]:
    """One number in [0, 1) a row, from its key alone. Arithmetic wraps at 64 bits."""
    state = _mix(seed + _GOLDEN)
    state = _mix((state ^ choice.astype(np.uint64)) + _GOLDEN)
    state = _mix((state ^ position.astype(np.uint64)) + _GOLDEN)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _probabilities(logits: torch.Tensor, temperature: npt.NDArray[np.float32]) -> torch.Tensor:
    """Shifted before it is divided, so that the smallest temperature cannot overflow the best token."""
    divisor = torch.from_numpy(temperature).to(logits.device, logits.dtype).unsqueeze(1)
    return torch.softmax((logits - logits.amax(-1, keepdim=True)) / divisor, -1)


def _draw(
    probs: torch.Tensor, top_k: IntArray, top_p: npt.NDArray[np.float32], numbers: npt.NDArray[np.float64]
) -> IntArray:
    """One token a row of `probs` [rows, vocab]."""
    vocab = probs.shape[1]
    limit = np.where(top_k > 0, np.minimum(top_k, vocab), vocab)
    token_ids = np.empty(len(limit), np.int64)
    pending = np.flatnonzero((limit < vocab) | (top_p < 1))
    whole = np.flatnonzero((limit == vocab) & (top_p >= 1))
    if len(whole):
        mass = probs[torch.from_numpy(whole).to(probs.device)].cumsum(-1, dtype=torch.float64)
        token_ids[whole] = _invert(mass, numbers[whole]).cpu().numpy()
    for width in (min(_CANDIDATES, vocab), vocab):
        if not len(pending):
            break
        rows = probs[torch.from_numpy(pending).to(probs.device)]
        ids, is_enough = _draw_among(rows, width, limit[pending], top_p[pending], numbers[pending])
        token_ids[pending[is_enough]] = ids[is_enough]
        pending = pending[~is_enough]
    return token_ids


def _draw_among(
    probs: torch.Tensor,
    width: int,
    limit: IntArray,
    top_p: npt.NDArray[np.float32],
    numbers: npt.NDArray[np.float64],
) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """Draw from the `width` likeliest tokens; False where a row's kept tokens may reach beyond them.

    Top-k first; top-p is a share of what top-k kept. A token is kept while the mass before it is below the share.
    """
    vocab = probs.shape[1]
    best, ids = probs.topk(width, dim=-1)  # descending
    mass = best.cumsum(-1, dtype=torch.float64)  # [rows, width]
    device = mass.device
    last = torch.from_numpy(np.minimum(limit, width) - 1).to(device).unsqueeze(1)
    is_cut = torch.from_numpy(limit < vocab).to(device).unsqueeze(1)
    total = torch.where(is_cut, mass.gather(1, last), 1.0)
    share = torch.from_numpy(top_p).to(device, torch.float64).unsqueeze(1) * total
    last = torch.minimum((mass < share).sum(-1, keepdim=True), last)
    drawn = torch.minimum(_invert(mass, numbers, mass.gather(1, last)).unsqueeze(1), last)
    reaches_share = (mass[:, -1:] >= share).squeeze(1).cpu().numpy()
    is_enough = (limit <= width) | ((limit == vocab) & reaches_share)
    return ids.gather(1, drawn).squeeze(1).cpu().numpy(), is_enough


def _invert(mass: torch.Tensor, numbers: npt.NDArray[np.float64], total: torch.Tensor | None = None) -> torch.Tensor:
    """Index of the first entry of `mass` [rows, n], rising, above `numbers` [rows] times `total` [rows, 1]."""
    end = mass[:, -1:] if total is None else total
    target = torch.from_numpy(numbers).to(mass.device).unsqueeze(1) * end
    target = torch.minimum(target, torch.nextafter(end, torch.zeros_like(end)))  # rounding must not reach the end
    return torch.searchsorted(mass, target, right=True).squeeze(1)
