"""Which token each sequence of vLLM's batch gets: our sampler, called by vLLM between its model and its argmax.

    update      vLLM says who stands where in its batch; what the sampler needs is gathered, and masks of allowed tokens
                begin to be computed, beside the model
    apply       logits [num_seqs, vocab] as the model gave them; each row leaves with one token possible

So a parameter means what it means in every backend, and a token depends on its logits, the parameters, the tokens
before it and (seed, choice, position): a request that is resumed draws as if it had not been disturbed. vLLM's own
sampler sees temperature 0 and no parameters. Belongs to the engine's thread, and imports no vLLM.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from shared.schemas import TokenLogprobs
from worker.engine.request import WAITING_ROW, Sequence
from worker.model.sampling.rows import SamplingRows
from worker.model.sampling.sampler import sample
from worker.model.sampling.table import SamplingTable
from worker.model.scoring import logprobs_of

# The name under which a request's key travels in vLLM's sampling parameters.
KEY = "headrace"


class Chosen(NamedTuple):
    """A token id, or NOT_FINITE; and its logprobs, where they were asked for."""

    token_id: int
    logprobs: TokenLogprobs | None


class TokenChooser:
    """`sequences` has what vLLM was given, by key: the engine adds and removes. `chosen` is of the last step, also of
    prompts that are not computed whole, where it counts for nothing.

    Invariant: `_batch` has the indices 0 to its size, as vLLM's batch does when a step begins.
    """

    def __init__(self, max_num_seqs: int) -> None:
        self.sequences: dict[str, Sequence] = {}
        self.chosen: dict[str, Chosen] = {}
        self._table = SamplingTable(max_num_seqs)
        self._free_rows = list(range(max_num_seqs))
        self._batch: dict[int, tuple[str, Sequence]] = {}
        self._sampling: SamplingRows | None = None

    def update(self, change: Any) -> None:
        """`change`: vLLM's BatchUpdate, None where the batch is the one before."""
        if change is not None:
            self._rearrange(change)
        owners = [self._batch[index][1] for index in range(len(self._batch))]
        positions = np.fromiter((len(owner.token_ids) for owner in owners), np.int64, len(owners))
        self._sampling = self._table.rows(owners, positions)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """In place."""
        if not self._batch:
            return logits
        rows = np.arange(len(self._batch))
        made = sample(logits, rows, self._sampling)
        told = {} if made.logprobs is None else logprobs_of(made.logprobs)
        self.chosen = {
            self._batch[index][0]: Chosen(token_id, told.get(index))
            for index, token_id in enumerate(made.token_ids.tolist())
        }
        token_ids = torch.from_numpy(made.token_ids.clip(min=0)).to(logits.device)
        return logits.fill_(-torch.inf).scatter_(1, token_ids.unsqueeze(1), 0.0)

    def close(self) -> None:
        self._table.close()

    def _rearrange(self, change: Any) -> None:
        """Those who left, then those who came, then those who moved: the order vLLM asks for."""
        for index in change.removed:
            self._leave(index)
        for index, params, _prompt_ids, _made_ids in change.added:
            self._leave(index)
            key = params.extra_args[KEY]
            sequence = self.sequences[key]
            sequence.row = self._free_rows.pop()
            self._table.claim(sequence)
            self._batch[index] = key, sequence
        for source, target, direction in change.moved:
            here, there = self._batch.pop(source, None), self._batch.pop(target, None)
            if here is not None:
                self._batch[target] = here
            if there is not None and direction.name == "SWAP":
                self._batch[source] = there
            elif there is not None:
                self._free(there[1])

    def _leave(self, index: int) -> None:
        held = self._batch.pop(index, None)
        if held is not None:
            self._free(held[1])

    def _free(self, sequence: Sequence) -> None:
        self._free_rows.append(sequence.row)
        sequence.row = WAITING_ROW


def logits_processor(interface: Any, chooser: TokenChooser) -> type:
    """A class that vLLM makes its logits processor of. `interface` is vLLM's LogitsProcessor; `chooser` is in this
    process, as the model's worker is."""

    def ignore(_self: object, *_vllm_tells: object) -> None: ...

    def is_argmax_invariant(_self: object) -> bool:
        return False

    def update_state(_self: object, change: Any) -> None:
        chooser.update(change)

    def apply(_self: object, logits: torch.Tensor) -> torch.Tensor:
        return chooser.apply(logits)

    return type(
        "HeadraceChooser",
        (interface,),
        {
            "__init__": ignore,
            "is_argmax_invariant": is_argmax_invariant,
            "update_state": update_state,
            "apply": apply,
        },
    )
