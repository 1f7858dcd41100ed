"""What penalties and biases do to the tokens of one choice, kept up as its tokens come.

A tally is a function of the parameters and of the tokens fed, which are always all tokens the choice has: after a
preemption, a requeue or a resume the same tokens give the same tally.
"""

from __future__ import annotations

import numpy as np

from shared.schemas import SamplingParams
from worker.model.sampling.rows import FloatArray, IntArray


def is_tallied(params: SamplingParams) -> bool:
    """Whether any parameter changes single logits."""
    penalties = params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1
    return bool(penalties or params.logit_bias)


class TokenTally:
    """Repetition counts what the prompt has and what was made, presence and frequency only what was made.

    One slot a distinct token: `term = bias - presence - frequency * times made`.
    """

    def __init__(self, params: SamplingParams, num_prompt_tokens: int) -> None:
        self._params = params
        self._num_prompt_tokens = num_prompt_tokens
        self._num_fed = 0 if params.repetition_penalty != 1 else num_prompt_tokens
        self._slots: dict[int, int] = {}
        self._biases: list[float] = []
        self._times: list[int] = []
        self._ids: IntArray = np.zeros(16, np.int64)
        self._factors: FloatArray = np.ones(16, np.float32)
        self._terms: FloatArray = np.zeros(16, np.float32)
        for token_id, bias in params.logit_bias:
            slot = self._slot(token_id)
            self._biases[slot] = bias
            self._terms[slot] = bias

    def feed(self, token_ids: list[int]) -> None:
        """All tokens of the choice, prompt first; those fed before are not read again."""
        for index in range(self._num_fed, len(token_ids)):
            self._count(token_ids[index], is_made=index >= self._num_prompt_tokens)
        self._num_fed = max(self._num_fed, len(token_ids))

    def entries(self) -> tuple[IntArray, FloatArray, FloatArray]:
        """Token ids, factors and terms (see LogitEdits). Views: valid until the next feed."""
        size = len(self._slots)
        return self._ids[:size], self._factors[:size], self._terms[:size]

    def _count(self, token_id: int, *, is_made: bool) -> None:
        params, slot = self._params, self._slot(token_id)
        self._factors[slot] = params.repetition_penalty
        if is_made:
            self._times[slot] += 1
            penalty = params.presence_penalty + params.frequency_penalty * self._times[slot]
            self._terms[slot] = self._biases[slot] - penalty

    def _slot(self, token_id: int) -> int:
        slot = self._slots.get(token_id)
        if slot is None:
            slot = self._slots[token_id] = len(self._slots)
            self._biases.append(0.0)
            self._times.append(0)
            if slot == len(self._ids):
                self._grow()
            self._ids[slot] = token_id
        return slot

    def _grow(self) -> None:
        size = len(self._ids)
        self._ids = np.concatenate([self._ids, np.zeros(size, np.int64)])
        self._factors = np.concatenate([self._factors, np.ones(size, np.float32)])
        self._terms = np.concatenate([self._terms, np.zeros(size, np.float32)])
