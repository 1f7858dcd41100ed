"""How the tokens of a step are to be chosen, as arrays: the part of a StepBatch that the sampler reads. No torch here.

    samples of the step      0       1       2       3            one a token to be made
    sampling.samples                 1               3            those that need more than the argmax
    rows here                        0               1            [num_rows]

A step in which every token is the argmax of its logits has no SamplingRows at all. Of a step that has some, the other
samples take the argmax and cost nothing. Everything here is a function of a request's parameters and of the tokens it
has, so that a batch, a preemption or a resume cannot change a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]
BitArray = npt.NDArray[np.uint32]

NO_LOGPROBS = -1
NOT_GIVEN = -1
# The most alternatives a client may ask for. Always as many are computed, so that equal logits are listed in the same
# order whatever a neighbour asked for.
MAX_TOP_LOGPROBS = 20


@dataclass(slots=True)
class LogitEdits:
    """Changes to single logits: entry i is about token `ids[i]` of row `rows[i]`; no pair occurs twice.

    First the factor: a positive logit is divided by it, another multiplied (1: nothing). Then the term is added.
    """

    rows: IntArray
    ids: IntArray
    factors: FloatArray
    terms: FloatArray


class TokenMasks(Protocol):
    """Which tokens some rows may take, computed while the model runs."""

    rows: IntArray  # [num_masked]

    def wait(self) -> BitArray:
        """[num_masked, words]: bit i of word w of a mask is token 32 * w + i. Every mask has a bit set."""
        ...


@dataclass(slots=True)
class SamplingRows:
    """Temperature 0 is the argmax of what edits, bans and masks leave; top_k 0, top_p 1 and min_p 0 are off."""

    samples: IntArray  # [num_rows], rising
    positions: IntArray  # [num_rows], the position the new token will have
    temperature: FloatArray  # [num_rows]
    top_p: FloatArray  # [num_rows]
    top_k: IntArray  # [num_rows]
    min_p: FloatArray  # [num_rows]
    seed: npt.NDArray[np.uint64]  # [num_rows]
    choice: IntArray  # [num_rows]
    num_logprobs: IntArray  # [num_rows], NO_LOGPROBS, or how many alternatives beside the chosen token
    edits: LogitEdits | None = None
    banned_rows: IntArray | None = None  # [num_banned]: token `banned_ids[i]` cannot be chosen in this row
    banned_ids: IntArray | None = None  # [num_banned]
    masks: TokenMasks | None = None
    given: IntArray | None = None  # [num_rows]: logprobs are of this token, whatever is chosen; NOT_GIVEN: the chosen

    def told(self, chosen: IntArray) -> IntArray:
        """[num_rows]: the tokens whose logprobs are told, where so are `chosen`."""
        return chosen if self.given is None else np.where(self.given == NOT_GIVEN, chosen, self.given)


@dataclass(slots=True)
class StepLogprobs:
    """Natural logarithms of the model's own probabilities, before parameters and masks: finite, at least -9999."""

    samples: IntArray  # [num_asked], the samples they are about, rising
    num_top: IntArray  # [num_asked], how many of the alternatives were asked for
    chosen: npt.NDArray[np.float64]  # [num_asked], of the chosen or the given token
    top_ids: IntArray  # [num_asked, MAX_TOP_LOGPROBS or the vocabulary], likeliest first
    top: npt.NDArray[np.float64]  # the same shape


@dataclass(slots=True)
class StepTokens:
    """What a runner made of a step. `logprobs` None: nobody asked.

    A sample whose logits are not finite gets NOT_FINITE for a token; the others are as if it were not there.
    """

    token_ids: IntArray  # [num_samples]
    logprobs: StepLogprobs | None = None
