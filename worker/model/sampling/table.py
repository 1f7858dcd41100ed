"""Sampling parameters of what runs, one row a sequence (`Sequence.row`), and from them the SamplingRows of a step.

A row is written when it changes hands. A sequence whose every token is the argmax of its logits is marked plain and
costs a step one look at an array; a step of plain sequences only has no SamplingRows.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np

from shared.schemas import SamplingParams
from worker.engine.request import Sequence
from worker.model.sampling.masks import MaskThread
from worker.model.sampling.rows import NO_LOGPROBS, FloatArray, IntArray, LogitEdits, SamplingRows
from worker.model.sampling.tally import TokenTally, is_tallied

SEED_MASK = (1 << 64) - 1


def is_plain(sequence: Sequence) -> bool:
    """Whether the argmax of its logits is all there is to know of each of its tokens."""
    params = sequence.params
    is_greedy = params.temperature == 0 and params.logprobs is None and sequence.automaton is None
    return is_greedy and not is_tallied(params) and not params.min_tokens


class SamplingTable:
    def __init__(self, max_num_seqs: int) -> None:
        self._is_plain = np.ones(max_num_seqs, np.bool_)
        self._temperature = np.zeros(max_num_seqs, np.float32)
        self._top_p = np.ones(max_num_seqs, np.float32)
        self._top_k = np.zeros(max_num_seqs, np.int64)
        self._min_p = np.zeros(max_num_seqs, np.float32)
        self._seed = np.zeros(max_num_seqs, np.uint64)
        self._choice = np.zeros(max_num_seqs, np.int64)
        self._num_logprobs = np.full(max_num_seqs, NO_LOGPROBS, np.int64)
        self._tallies: list[TokenTally | None] = [None] * max_num_seqs
        self._masks = MaskThread()

    def claim(self, sequence: Sequence) -> None:
        """The sequence's row changes hands: the new owner's parameters come."""
        row, params = sequence.row, sequence.params
        self._is_plain[row] = is_plain(sequence)
        self._write(row, params)
        self._choice[row] = sequence.choice
        self._tallies[row] = TokenTally(params, sequence.num_prompt_tokens) if is_tallied(params) else None

    def rows(self, sampled: SequenceOf[Sequence], positions: IntArray) -> SamplingRows | None:
        """Of a step that makes a token for each of `sampled`, at `positions`. None: every one is an argmax."""
        rows = np.fromiter((sequence.row for sequence in sampled), np.int64, len(sampled))
        samples = np.flatnonzero(~self._is_plain[rows])
        if not len(samples):
            return None
        owners, rows = [sampled[sample] for sample in samples.tolist()], rows[samples]
        built = SamplingRows(
            samples=samples,
            positions=positions[samples],
            temperature=self._temperature[rows],
            top_p=self._top_p[rows],
            top_k=self._top_k[rows],
            min_p=self._min_p[rows],
            seed=self._seed[rows],
            choice=self._choice[rows],
            num_logprobs=self._num_logprobs[rows],
            edits=self._edits(owners),
        )
        self._start_masks(built, owners)
        _ban(built, owners)
        return built

    def close(self) -> None:
        self._masks.close()

    def _write(self, row: int, params: SamplingParams) -> None:
        self._temperature[row] = params.temperature
        self._top_p[row] = params.top_p
        self._top_k[row] = params.top_k
        self._min_p[row] = params.min_p
        self._seed[row] = params.seed & SEED_MASK
        self._num_logprobs[row] = NO_LOGPROBS if params.logprobs is None else params.logprobs

    def _edits(self, owners: list[Sequence]) -> LogitEdits | None:
        rows, entries = list[int](), list[tuple[IntArray, FloatArray, FloatArray]]()
        for index, sequence in enumerate(owners):
            tally = self._tallies[sequence.row]
            if tally is not None:
                tally.feed(sequence.token_ids)
                rows.append(index)
                entries.append(tally.entries())
        if not rows:
            return None
        ids, factors, terms = zip(*entries, strict=True)
        counts = [len(own) for own in ids]
        return LogitEdits(np.repeat(rows, counts), np.concatenate(ids), np.concatenate(factors), np.concatenate(terms))

    def _start_masks(self, built: SamplingRows, owners: list[Sequence]) -> None:
        masked = [(index, owner) for index, owner in enumerate(owners) if owner.automaton is not None]
        if masked:
            wanted = [(owner.automaton, owner.banned_ids) for _, owner in masked if owner.automaton is not None]
            built.masks = self._masks.start(np.array([index for index, _ in masked], np.int64), wanted)


def _ban(built: SamplingRows, owners: list[Sequence]) -> None:
    """Where a mask is computed, it leaves out what is banned itself."""
    pairs = [
        (index, token_id)
        for index, owner in enumerate(owners)
        if owner.automaton is None
        for token_id in owner.banned_ids
    ]
    if pairs:
        built.banned_rows, built.banned_ids = np.array(pairs, np.int64).T
