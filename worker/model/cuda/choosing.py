"""Tokens chosen on the device, and fetched with all else a step made by one wait.

The same choices as `sampling.sampler` makes: the greedy by argmax, the others by the same edits, draws and logprobs.
Only where a row keeps more tokens than are looked at in one go is the sampler itself asked afterwards: a second wait,
and rare.
"""

from __future__ import annotations

import numpy as np
import torch

from worker.engine.request import NOT_FINITE
from worker.model.sampling.draws import draw_once
from worker.model.sampling.edits import edit
from worker.model.sampling.logprobs import asked_rows, logprob_tensors, logprobs_from
from worker.model.sampling.rows import NOT_GIVEN, IntArray, SamplingRows, StepTokens
from worker.model.sampling.sampler import choose
from worker.model.sampling.transfer import Fetched, place


class PendingTokens:
    """What a step is making. `wait` gives it, once. `argmaxes` [num_samples] stay on the device, for the next step."""

    def __init__(self, logits: torch.Tensor, row_of_sample: IntArray, sampling: SamplingRows | None) -> None:
        """`logits` [rows, vocab]; sample i of the step reads row `row_of_sample[i]`. Waits for masks, not for the
        device."""
        self._logits, self._row_of_sample, self._sampling = logits, row_of_sample, sampling
        self.argmaxes = best = _best_tokens(logits).index_select(0, place(row_of_sample, logits.device))
        made = [best]
        if sampling is not None:
            made += _choose(logits, row_of_sample[sampling.samples], best, sampling)
        self._fetched = Fetched(made)

    @torch.inference_mode()
    def wait(self) -> StepTokens:
        token_ids, *more = self._fetched.wait()
        sampling = self._sampling
        if sampling is None:
            return StepTokens(token_ids)
        chosen, is_enough, *logprobs = more
        if not is_enough.all():
            return choose(token_ids, self._logits, self._row_of_sample[sampling.samples], sampling)
        token_ids[sampling.samples] = chosen
        return StepTokens(token_ids, logprobs_from(logprobs, asked_rows(sampling), sampling) if logprobs else None)


def _choose(logits: torch.Tensor, rows: IntArray, best: torch.Tensor, sampling: SamplingRows) -> list[torch.Tensor]:
    """Token ids of `sampling`'s rows, whether each was found (see `draw_once`), and the logprobs that are asked."""
    device = logits.device
    scores = logits.index_select(0, place(rows, device))  # a copy
    is_broken = best.index_select(0, place(sampling.samples, device)) == NOT_FINITE
    scores.masked_fill_(is_broken.unsqueeze(1), 0)  # something to draw from, for nobody
    asked = asked_rows(sampling)
    plain = scores.index_select(0, place(asked, device)) if len(asked) else None  # before they are edited
    edit(scores, sampling)
    chosen, is_enough = _best_tokens(scores), torch.ones_like(is_broken)
    drawn = np.flatnonzero(sampling.temperature > 0)
    if len(drawn):
        where = place(drawn, device)
        ids, found = draw_once(_at_least_two(scores.index_select(0, where)), _doubled(drawn), sampling)
        chosen.index_copy_(0, where, ids[: len(drawn)])
        is_enough.index_copy_(0, where, found[: len(drawn)])
    is_enough |= is_broken
    chosen = torch.where(is_broken, NOT_FINITE, chosen)
    if plain is None:
        return [chosen, is_enough]
    told = chosen.index_select(0, place(asked, device))
    if sampling.given is not None:
        given = place(sampling.given[asked], device)
        told = torch.where(given == NOT_GIVEN, told, given)
    return [chosen, is_enough, *logprob_tensors(plain, told)]


def _best_tokens(scores: torch.Tensor) -> torch.Tensor:
    """[rows]: the first of the likeliest of each row, NOT_FINITE where that is none."""
    found = scores.max(-1)
    return torch.where(found.values.isfinite(), found.indices, NOT_FINITE)


def _at_least_two(scores: torch.Tensor) -> torch.Tensor:
    """A GPU sums up one row alone by another algorithm, in no fixed order."""
    return scores if len(scores) > 1 else scores.repeat(2, 1)


def _doubled(rows: IntArray) -> IntArray:
    return rows if len(rows) > 1 else np.repeat(rows, 2)
