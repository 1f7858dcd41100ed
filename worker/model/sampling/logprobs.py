"""Logarithms of the model's own probabilities: of the chosen token and of the likeliest ones.

Taken from the logits as the model gave them: temperature, penalties, bans and masks do not enter, so that an answer
can be rated whatever made it. Sums run along one row in fp64; a neighbour changes no bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from worker.model.sampling.draws import spans
from worker.model.sampling.rows import MAX_TOP_LOGPROBS, NO_LOGPROBS, IntArray, SamplingRows, StepLogprobs
from worker.model.sampling.transfer import Fetched, place

# JSON has no infinity, and nothing below this is a probability anybody can tell from none.
LOWEST = -9999.0
_DECIMALS = 6


def asked_rows(sampling: SamplingRows) -> IntArray:
    """Rows of `sampling` whose client wants logprobs."""
    return np.flatnonzero(sampling.num_logprobs != NO_LOGPROBS)


def step_logprobs(logits: torch.Tensor, rows: IntArray, chosen: IntArray, sampling: SamplingRows) -> StepLogprobs:
    """`logits` [len(rows), vocab] of the asked `rows` of `sampling`, unchanged; `chosen` [len(rows)] token ids (where
    there is none, NOT_FINITE, its logprob is anything)."""
    found = Fetched(logprob_tensors(logits, place(chosen, logits.device)))
    return logprobs_from(found.wait(), rows, sampling)


def logprob_tensors(logits: torch.Tensor, chosen: torch.Tensor) -> list[torch.Tensor]:
    """On the device, without a wait: logprobs of `chosen` [rows], the likeliest ids and their logprobs [rows, top]."""
    peak = logits.amax(-1, keepdim=True)
    mass = spans((logits - peak).exp_())[1].cumsum(-1)[:, -1:]
    normalizer = peak.double() + mass.log()  # [rows, 1]
    top, top_ids = logits.topk(min(MAX_TOP_LOGPROBS, logits.shape[1]), dim=-1)
    picked = logits.gather(1, chosen.clamp(min=0).unsqueeze(1))
    return [_finite(picked.double() - normalizer).squeeze(1), top_ids, _finite(top.double() - normalizer)]


def logprobs_from(found: list[npt.NDArray[Any]], rows: IntArray, sampling: SamplingRows) -> StepLogprobs:
    """`found`: what `logprob_tensors` gave for `rows` of `sampling`, fetched."""
    chosen, top_ids, top = found
    return StepLogprobs(
        samples=sampling.samples[rows],
        num_top=sampling.num_logprobs[rows],
        chosen=chosen.round(_DECIMALS) + 0.0,  # no negative zero
        top_ids=top_ids,
        top=top.round(_DECIMALS) + 0.0,
    )


def _finite(values: torch.Tensor) -> torch.Tensor:
    return values.nan_to_num(LOWEST, 0.0, LOWEST).clamp(LOWEST, 0.0)
