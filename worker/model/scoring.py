"""Logprobs of a step, and of the prompts' tokens among them: which rows tell those, and whose they are.

    rows         r0   r1   r2   r3        of one sequence: its prompt's tokens t0 .. t3
    tells        t1   t2   t3   the next  r0 has the logprob of t1: the token is given, not chosen

The samples of a step are first those that make tokens, then those of `schedule.scored`, in its order. What the latter
choose is dropped, but for NOT_FINITE.
"""

from __future__ import annotations

from dataclasses import fields
from typing import NamedTuple

import numpy as np

from shared.schemas import TokenLogprobs
from worker.engine.executor import Schedule, Scores
from worker.engine.request import NOT_FINITE
from worker.model.sampling.rows import NOT_GIVEN, IntArray, SamplingRows, StepLogprobs


class ScoredRows(NamedTuple):
    """All [num_scored]: rows of the step, the tokens that come after them, and how many rivals are to be told."""

    rows: IntArray
    given: IntArray
    num_logprobs: IntArray


def scored_rows(schedule: Schedule, query_start: IntArray) -> ScoredRows:
    """`query_start` [num_seqs + 1] is in the order of `schedule.chunks`."""
    rows: list[int] = []
    given: list[int] = []
    num_logprobs: list[int] = []
    for sequence, start in zip(schedule.chunks, query_start.tolist(), strict=False):
        count = schedule.scored.get(sequence, 0)
        if count:
            position = sequence.num_scored_tokens
            first = start + position - sequence.num_computed_tokens
            rows += range(first, first + count)
            given += sequence.token_ids[position + 1 : position + 1 + count]
            num_logprobs += [sequence.params.prompt_logprobs or 0] * count
    return ScoredRows(np.array(rows, np.int64), np.array(given, np.int64), np.array(num_logprobs, np.int64))


def with_given(sampling: SamplingRows | None, num_samples: int, prompts: ScoredRows) -> SamplingRows:
    """The rows of `sampling`, then one for each of `prompts`, whose samples are those from `num_samples` on."""
    count = len(prompts.rows)
    zeros, reals = np.zeros(count, np.int64), np.zeros(count, np.float32)
    added = SamplingRows(
        samples=num_samples + np.arange(count),
        positions=zeros,
        temperature=reals,
        top_p=reals + 1,
        top_k=zeros,
        min_p=reals,
        seed=np.zeros(count, np.uint64),
        choice=zeros,
        num_logprobs=prompts.num_logprobs,
        given=prompts.given,
    )
    if sampling is None:
        return added
    sampling.given = np.full(len(sampling.samples), NOT_GIVEN, np.int64)
    for name in (field.name for field in fields(SamplingRows)):
        if getattr(added, name) is not None:
            setattr(sampling, name, np.concatenate([getattr(sampling, name), getattr(added, name)]))
    return sampling


def scores_of(schedule: Schedule, token_ids: list[int], logprobs: dict[int, TokenLogprobs]) -> Scores:
    """By sequence. `token_ids` and `logprobs` are of all samples of the step; those of prompts are taken out of the
    latter."""
    scores: Scores = {}
    sample = len(token_ids) - sum(schedule.scored.values())
    for sequence in schedule.chunks:
        count = schedule.scored.get(sequence, 0)
        if count:
            told = [logprobs.pop(index) for index in range(sample, sample + count)]
            scores[sequence] = None if NOT_FINITE in token_ids[sample : sample + count] else told
            sample += count
    return scores


def logprobs_of(made: StepLogprobs) -> dict[int, TokenLogprobs]:
    """By sample."""
    counts, chosen = made.num_top.tolist(), made.chosen.tolist()
    tops = [
        tuple(zip(ids[:count], values[:count], strict=True))
        for count, ids, values in zip(counts, made.top_ids.tolist(), made.top.tolist(), strict=True)
    ]
    pairs = zip(made.samples.tolist(), chosen, tops, strict=True)
    return {sample: TokenLogprobs(logprob, top) for sample, logprob, top in pairs}
