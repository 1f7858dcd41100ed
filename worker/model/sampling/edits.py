"""What parameters and masks do to logits before a token is chosen: penalties, biases, bans, allowed tokens.

In place, for all rows at once. A banned token's logit becomes -inf. Each row's result is a function of its own logits
and of its own entries.
"""

from __future__ import annotations

import numpy as np
import torch

from worker.model.sampling.rows import BitArray, IntArray, LogitEdits, SamplingRows
from worker.model.sampling.transfer import place


def edit(scores: torch.Tensor, sampling: SamplingRows) -> None:
    """`scores` [num_rows, vocab], the logits of `sampling`'s rows. Masks last: they are what was waited for."""
    if sampling.edits is not None:
        _penalize(scores, sampling.edits)
    if sampling.banned_rows is not None and sampling.banned_ids is not None:
        scores[_index(sampling.banned_rows, scores), _index(sampling.banned_ids, scores)] = -torch.inf
    if sampling.masks is not None:
        _keep_allowed(scores, sampling.masks.rows, sampling.masks.wait())


def _penalize(scores: torch.Tensor, edits: LogitEdits) -> None:
    where = _index(edits.rows, scores), _index(edits.ids, scores)
    factors = place(edits.factors, scores.device, scores.dtype)
    terms = place(edits.terms, scores.device, scores.dtype)
    found = scores[where]
    scores[where] = torch.where(found > 0, found / factors, found * factors) + terms


def _keep_allowed(scores: torch.Tensor, rows: IntArray, masks: BitArray) -> None:
    """`masks` [len(rows), words]; what a mask is too short for is not allowed."""
    bits = np.unpackbits(~masks.view(np.uint8), axis=1, bitorder="little")[:, : scores.shape[1]]
    is_banned = place(bits.view(np.bool_), scores.device)
    where = _index(rows, scores)
    kept = scores[where]
    kept[:, : is_banned.shape[1]].masked_fill_(is_banned, -torch.inf)
    kept[:, is_banned.shape[1] :] = -torch.inf
    scores[where] = kept


def _index(values: IntArray, like: torch.Tensor) -> torch.Tensor:
    return place(values, like.device)
