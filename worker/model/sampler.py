"""From logits to token ids.

Invariant: the token at position p of a choice is a function of its own logits, its parameters, and
(seed, choice, p). No generator has a state, so a batch, a preemption or a restart cannot change a draw.
Greedy rows take the argmax and no softmax. The others invert the cumulative distribution at one uniform
number hashed from the key; sums run along one row in fp64.
Source of the hash: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (SplitMix64).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from worker.model.runner import IntArray, StepBatch

# Wide enough for nearly every top-p; a row it is too narrow for is sorted whole. Constant, so that a row's
# draw does not depend on its neighbours.
_CANDIDATES = 512
_SPAN = 256
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def sample(logits: torch.Tensor, row_of_sample: IntArray, batch: StepBatch) -> IntArray:
    """`logits` [rows, vocab], sample i reads row `row_of_sample[i]`. Returns token ids [num_samples]."""
    token_ids: IntArray = logits.argmax(-1).cpu().numpy()[row_of_sample]
    drawn = np.flatnonzero(batch.temperature > 0)
    if len(drawn):
        scores = _rows(logits, row_of_sample[drawn])  # a copy
        numbers = uniforms(batch.seed[drawn], batch.choice[drawn], batch.sample_positions[drawn])
        weights = _weights(scores, batch.temperature[drawn])
        token_ids[drawn] = _draw(weights, batch.top_k[drawn], batch.top_p[drawn], numbers)
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


def _weights(scores: torch.Tensor, temperature: npt.NDArray[np.float32]) -> torch.Tensor:
    """Probabilities up to a factor a row, in place of `scores` [rows, vocab]; the likeliest token has 1.

    Shifted before it is divided, so that the smallest temperature cannot overflow.
    """
    divisor = torch.from_numpy(temperature).to(scores.device, scores.dtype).unsqueeze(1)
    return scores.sub_(scores.amax(-1, keepdim=True)).div_(divisor).exp_()


def _draw(
    weights: torch.Tensor, top_k: IntArray, top_p: npt.NDArray[np.float32], numbers: npt.NDArray[np.float64]
) -> IntArray:
    """One token a row of `weights` [rows, vocab]."""
    vocab = weights.shape[1]
    limit = np.where(top_k > 0, np.minimum(top_k, vocab), vocab)
    is_cut = (limit < vocab) | (top_p < 1)
    if not is_cut.any():
        return _draw_from_all(weights, numbers)
    token_ids = np.empty(len(limit), np.int64)
    whole, pending = np.flatnonzero(~is_cut), np.flatnonzero(is_cut)
    if len(whole):
        token_ids[whole] = _draw_from_all(_rows(weights, whole), numbers[whole])
    for width in (min(_CANDIDATES, vocab), vocab):
        if not len(pending):
            break
        ids, is_enough = _draw_among(
            _rows(weights, pending), width, limit[pending], top_p=top_p[pending], numbers=numbers[pending]
        )
        token_ids[pending[is_enough]] = ids[is_enough]
        pending = pending[~is_enough]
    return token_ids


def _rows(weights: torch.Tensor, rows: IntArray) -> torch.Tensor:
    return weights.index_select(0, torch.from_numpy(rows).to(weights.device))


def _spans(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`weights` in spans, [rows, spans, _SPAN], and the mass of each, [rows, spans] fp64."""
    spans = F.pad(weights, (0, -weights.shape[1] % _SPAN)).view(len(weights), -1, _SPAN)
    return spans, spans.sum(-1, dtype=torch.float64)


def _draw_from_all(weights: torch.Tensor, numbers: npt.NDArray[np.float64]) -> IntArray:
    """First the span, then the token in it: 30 times as fast as a running sum of the whole vocabulary."""
    spans, masses = _spans(weights)
    risen = masses.cumsum(-1)
    target = torch.from_numpy(numbers).to(weights.device).unsqueeze(1) * risen[:, -1:]
    span = _first_above(risen, target, risen[:, -1:])  # [rows, 1]
    within = spans.gather(1, span.unsqueeze(2).expand(-1, 1, _SPAN)).squeeze(1).cumsum(-1, dtype=torch.float64)
    target = target - (risen.gather(1, span) - masses.gather(1, span))
    return (span * _SPAN + _first_above(within, target, within[:, -1:])).squeeze(1).cpu().numpy()


def _draw_among(
    weights: torch.Tensor,
    width: int,
    limit: IntArray,
    *,
    top_p: npt.NDArray[np.float32],
    numbers: npt.NDArray[np.float64],
) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """Draw from the `width` likeliest tokens; False where a row's kept tokens may reach beyond them.

    Top-k first; top-p is a share of what top-k kept. A token is kept while the mass before it is below the share.
    """
    vocab, device = weights.shape[1], weights.device
    best, ids = weights.topk(width, dim=-1)  # descending
    risen = best.cumsum(-1, dtype=torch.float64)  # [rows, width]
    last = torch.from_numpy(np.minimum(limit, width) - 1).to(device).unsqueeze(1)
    is_limited = torch.from_numpy(limit < vocab).to(device).unsqueeze(1)
    total = torch.where(is_limited, risen.gather(1, last), _spans(weights)[1].cumsum(-1)[:, -1:])
    share = torch.from_numpy(top_p).to(device, torch.float64).unsqueeze(1) * total
    kept = risen.gather(1, torch.minimum((risen < share).sum(-1, keepdim=True), last))
    drawn = _first_above(risen, torch.from_numpy(numbers).to(device).unsqueeze(1) * kept, kept)
    reaches_share = (risen[:, -1:] >= share).squeeze(1).cpu().numpy()
    is_enough = (limit <= width) | ((limit == vocab) & reaches_share) | (width == vocab)
    return ids.gather(1, drawn).squeeze(1).cpu().numpy(), is_enough


def _first_above(mass: torch.Tensor, target: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    """Index of the first entry of `mass` [rows, n], rising, above `target` [rows, 1]; the result is [rows, 1].

    `target` is held within [0, end), so that rounding can choose neither an impossible token nor one past `end`.
    """
    target = torch.minimum(target.clamp(min=0), torch.nextafter(end, torch.zeros_like(end)))
    return torch.searchsorted(mass, target, right=True)
