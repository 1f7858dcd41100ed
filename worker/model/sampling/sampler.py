"""From logits to token ids: the one entry point of every runner.

Invariant: the token at position p of a choice is a function of its own logits, its parameters, the tokens before it
and (seed, choice, p). Greedy samples take the argmax and nothing else is computed for them; a runner that finds
argmaxes by itself hands over only the logits of `SamplingRows`' samples (`choose`).
"""

from __future__ import annotations

import numpy as np
import torch

from worker.engine.request import NOT_FINITE
from worker.model.sampling.draws import draw
from worker.model.sampling.edits import edit
from worker.model.sampling.logprobs import asked_rows, step_logprobs
from worker.model.sampling.rows import IntArray, SamplingRows, StepTokens


def sample(logits: torch.Tensor, row_of_sample: IntArray, sampling: SamplingRows | None) -> StepTokens:
    """`logits` [rows, vocab]; sample i of the step reads row `row_of_sample[i]`."""
    token_ids = _best_tokens(logits)[row_of_sample]
    if sampling is None:
        return StepTokens(token_ids)
    return choose(token_ids, logits, row_of_sample[sampling.samples], sampling)


def choose(token_ids: IntArray, logits: torch.Tensor, rows: IntArray, sampling: SamplingRows) -> StepTokens:
    """`token_ids` [num_samples] holds the argmax of every sample, or NOT_FINITE; those of `sampling` are replaced in
    place, unless they are not finite.

    Row i of `sampling` reads row `rows[i]` of `logits` [any number, vocab], which is left as it is.
    """
    scores = logits.index_select(0, torch.from_numpy(rows).to(logits.device))  # a copy
    if scores.dtype not in (torch.float32, torch.float64):
        scores = scores.float()
    is_broken = token_ids[sampling.samples] == NOT_FINITE
    if is_broken.any():
        scores[torch.from_numpy(is_broken).to(scores.device)] = 0  # something to draw from, for nobody
    asked = asked_rows(sampling)
    plain = scores[torch.from_numpy(asked).to(scores.device)] if len(asked) else None  # before they are edited
    edit(scores, sampling)
    chosen = _chosen(scores, sampling)
    token_ids[sampling.samples] = np.where(is_broken, NOT_FINITE, chosen)
    if plain is None:
        return StepTokens(token_ids)
    return StepTokens(token_ids, step_logprobs(plain, asked, sampling.told(chosen)[asked], sampling))


def _chosen(scores: torch.Tensor, sampling: SamplingRows) -> IntArray:
    """`scores` [num_rows, vocab] are used up."""
    is_drawn = sampling.temperature > 0
    if is_drawn.all():
        return draw(scores, np.arange(len(is_drawn)), sampling)
    chosen = _best_tokens(scores)
    drawn = np.flatnonzero(is_drawn)
    if len(drawn):
        chosen[drawn] = draw(scores[torch.from_numpy(drawn).to(scores.device)], drawn, sampling)
    return chosen


def _best_tokens(scores: torch.Tensor) -> IntArray:
    """The first of the likeliest of each row, NOT_FINITE where that is none. On a CPU NumPy finds it ten times as fast
    as PyTorch does."""
    if scores.device.type == "cpu" and scores.dtype in (torch.float32, torch.float64):
        rows = scores.numpy()
        best: IntArray = rows.argmax(-1)  # a row with a NaN has it as its maximum
        return np.where(np.isfinite(rows[np.arange(len(rows)), best]), best, NOT_FINITE)
    found = scores.max(-1)
    return torch.where(found.values.isfinite(), found.indices, NOT_FINITE).cpu().numpy()
