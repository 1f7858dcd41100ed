"""Random draws: one token a row, a function of the row's scores, its parameters and (seed, choice, position) alone.

No generator has a state. A row inverts its cumulative distribution at one uniform number hashed from its key; sums run
along one row in fp64, so that neighbours change no bit.
Source of the hash: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (SplitMix64).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from worker.model.sampling.rows import FloatArray, IntArray, SamplingRows
from worker.model.sampling.transfer import place

# How many of the likeliest tokens are looked at: most kept sets are small, and a row whose set may be larger is tried
# again. Which width a row ends with hangs on that row alone.
_WIDTHS = (64, 512)
_SPAN = 256
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(slots=True)
class _Limits:
    """What is kept of each row before it is drawn from. `top_k` is the vocabulary where it is off."""

    top_k: IntArray
    top_p: FloatArray
    numbers: npt.NDArray[np.float64]

    def of(self, rows: IntArray | npt.NDArray[np.bool_]) -> _Limits:
        return _Limits(self.top_k[rows], self.top_p[rows], self.numbers[rows])


def draw(scores: torch.Tensor, rows: IntArray, sampling: SamplingRows) -> IntArray:
    """`scores` [len(rows), vocab] belong to `rows` of `sampling`, temperature above 0, and are used up."""
    return _draw(*_weights_and_limits(scores, rows, sampling))


def draw_once(scores: torch.Tensor, rows: IntArray, sampling: SamplingRows) -> tuple[torch.Tensor, torch.Tensor]:
    """As `draw`, but on the device and without a wait: token ids, and False where the kept tokens may reach beyond
    those looked at, so that `draw` must be asked. Both [len(rows)]."""
    weights, limits = _weights_and_limits(scores, rows, sampling)
    vocab, device = weights.shape[1], weights.device
    is_cut = (limits.top_k < vocab) | (limits.top_p < 1)
    token_ids = torch.empty(len(rows), dtype=torch.int64, device=device)
    is_enough = torch.ones(len(rows), dtype=torch.bool, device=device)
    whole, cut = np.flatnonzero(~is_cut), np.flatnonzero(is_cut)
    if len(whole):
        token_ids.index_copy_(0, place(whole, device), _draw_from_all(_rows(weights, whole), limits.numbers[whole]))
    if len(cut):
        ids, reaches = _draw_among(_rows(weights, cut), min(_WIDTHS[-1], vocab), limits.of(cut))
        token_ids.index_copy_(0, place(cut, device), ids)
        is_enough.index_copy_(0, place(cut, device), reaches)
    return token_ids, is_enough


def _weights_and_limits(scores: torch.Tensor, rows: IntArray, sampling: SamplingRows) -> tuple[torch.Tensor, _Limits]:
    numbers = uniforms(sampling.seed[rows], sampling.choice[rows], sampling.positions[rows])
    weights = _weights(scores, sampling.temperature[rows])
    min_p = sampling.min_p[rows]
    if min_p.any():
        weights.masked_fill_(weights < _column(min_p, weights), 0)
    vocab, top_k = weights.shape[1], sampling.top_k[rows]
    limits = _Limits(np.where(top_k > 0, np.minimum(top_k, vocab), vocab), sampling.top_p[rows], numbers)
    return weights, limits


def uniforms(seed: npt.NDArray[np.uint64], choice: IntArray, position: IntArray) -> npt.NDArray[np.float64]:
    """One number in [0, 1) a row, from its key alone. Arithmetic wraps at 64 bits."""
    state = _mix(seed + _GOLDEN)
    state = _mix((state ^ choice.astype(np.uint64)) + _GOLDEN)
    state = _mix((state ^ position.astype(np.uint64)) + _GOLDEN)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def spans(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`weights` in spans, [rows, spans, _SPAN], and the mass of each, [rows, spans] fp64."""
    padded = F.pad(weights, (0, -weights.shape[1] % _SPAN)).view(len(weights), -1, _SPAN)
    return padded, padded.sum(-1, dtype=torch.float64)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _weights(scores: torch.Tensor, temperature: FloatArray) -> torch.Tensor:
    """Probabilities up to a factor a row, in place of `scores` [rows, vocab]; the likeliest token has 1.

    Shifted before it is divided, so that the smallest temperature cannot overflow.
    """
    return scores.sub_(scores.amax(-1, keepdim=True)).div_(_column(temperature, scores)).exp_()


def _draw(weights: torch.Tensor, limits: _Limits) -> IntArray:
    """One token a row of `weights` [rows, vocab]."""
    vocab = weights.shape[1]
    is_cut = (limits.top_k < vocab) | (limits.top_p < 1)
    if not is_cut.any():
        return _draw_from_all(weights, limits.numbers).cpu().numpy()
    token_ids = np.empty(len(is_cut), np.int64)
    whole, pending = np.flatnonzero(~is_cut), np.flatnonzero(is_cut)
    if len(whole):
        token_ids[whole] = _draw_from_all(_rows(weights, whole), limits.numbers[whole]).cpu().numpy()
    for width in (*(width for width in _WIDTHS if width < vocab), vocab):
        if not len(pending):
            break
        ids, reaches = _draw_among(_rows(weights, pending), width, limits.of(pending))
        is_enough = reaches.cpu().numpy()
        token_ids[pending[is_enough]] = ids.cpu().numpy()[is_enough]
        pending = pending[~is_enough]
    return token_ids


def _rows(weights: torch.Tensor, rows: IntArray) -> torch.Tensor:
    return weights.index_select(0, place(rows, weights.device))


def _column(values: npt.NDArray[np.floating], like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """[rows, 1], where `like` is and as it is."""
    return place(values, like.device, dtype or like.dtype).unsqueeze(1)


def _draw_from_all(weights: torch.Tensor, numbers: npt.NDArray[np.float64]) -> torch.Tensor:
    """[rows]. First the span, then the token in it: 30 times as fast as a running sum of the whole vocabulary."""
    parts, masses = spans(weights)
    risen = masses.cumsum(-1)
    target = _column(numbers, risen) * risen[:, -1:]
    span = _first_above(risen, target, risen[:, -1:])  # [rows, 1]
    within = parts.gather(1, span.unsqueeze(2).expand(-1, 1, _SPAN)).squeeze(1).cumsum(-1, dtype=torch.float64)
    target = target - (risen.gather(1, span) - masses.gather(1, span))
    return (span * _SPAN + _first_above(within, target, within[:, -1:])).squeeze(1)


def _draw_among(weights: torch.Tensor, width: int, limits: _Limits) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw from the `width` likeliest tokens; False where a row's kept tokens may reach beyond them. Both [rows].

    Top-k first; top-p is a share of what top-k kept. A token is kept while the mass before it is below the share.
    """
    vocab, device = weights.shape[1], weights.device
    best, ids = weights.topk(width, dim=-1)  # descending
    risen = best.cumsum(-1, dtype=torch.float64)  # [rows, width]
    last = place(np.minimum(limits.top_k, width) - 1, device).unsqueeze(1)
    is_limited = place(limits.top_k < vocab, device).unsqueeze(1)
    total = torch.where(is_limited, risen.gather(1, last), spans(weights)[1].cumsum(-1)[:, -1:])
    share = _column(limits.top_p, weights, torch.float64) * total
    kept = risen.gather(1, torch.minimum((risen < share).sum(-1, keepdim=True), last))
    drawn = _first_above(risen, _column(limits.numbers, risen) * kept, kept)
    is_whole = place((limits.top_k <= width) | (width == vocab), device)
    reaches_share = ~is_limited.squeeze(1) & (risen[:, -1:] >= share).squeeze(1)
    return ids.gather(1, drawn).squeeze(1), is_whole | reaches_share


def _first_above(mass: torch.Tensor, target: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    """Index of the first entry of `mass` [rows, n], rising, above `target` [rows, 1]; the result is [rows, 1].

    `target` is held within [0, end), so that rounding can choose neither an impossible token nor one past `end`.
    """
    target = torch.minimum(target.clamp(min=0), torch.nextafter(end, torch.zeros_like(end)))
    return torch.searchsorted(mass, target, right=True)
