"""The seam between the engine and a model: arrays in, arrays out. No torch here.

One call serves prefill, chunk, decode, the verification of drafts and any mixture of them: there is no `is_prefill`
anywhere.

    sequence     0           1   2              three sequences in one step
    rows         r r r r r   r   r r            num_tokens = 8
    query_start  0           5   6     8        [num_seqs + 1]

A row is one token: its id, its position in its sequence, and the KV slot it writes
(slot = block * block_size + position % block_size). A sequence attends to its own positions
0..position through its row of `block_tables`. Block 0 is scratch: padding reads and writes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from worker.model.sampling.rows import IntArray, SamplingRows, StepTokens

if TYPE_CHECKING:
    from worker.model.families.model_config import ModelConfig
    from worker.model.lora.low_rank import LowRankAdapter


@dataclass(slots=True)
class StepBatch:
    """All a runner needs for one step. `seq_lens` counts a sequence's tokens after this step.

    `sample_rows` has one entry a token to be made: the row whose logits it is chosen by. That is a sequence's last row,
    and where that row and some before it are drafts, the row before the first draft and each of the drafts'. `sampling`
    says which of them need more than the argmax, and what; None: none does. `fed_samples` of a step that follows one
    under way: each row's token is that sample of it, and `token_ids` says nothing. `adapters`: the slot of what each
    sequence is computed with beside the model, NO_ADAPTER for nothing; None: none of them has one.
    """

    token_ids: IntArray  # [num_tokens]
    positions: IntArray  # [num_tokens]
    slot_mapping: IntArray  # [num_tokens]
    query_start: IntArray  # [num_seqs + 1]
    seq_lens: IntArray  # [num_seqs]
    block_tables: IntArray  # [num_seqs, max_blocks], padded with 0
    sample_rows: IntArray  # [num_samples]
    sampling: SamplingRows | None = None
    fed_samples: IntArray | None = None  # [num_tokens]
    adapters: IntArray | None = None  # [num_seqs]


class Runner(Protocol):
    """Owns the weights and the KV pool of `num_blocks` blocks of `block_size` tokens (block 0 included)."""

    num_blocks: int
    block_size: int

    def execute(self, batch: StepBatch) -> StepTokens:
        """Run one step; returns the token chosen for each entry of `sample_rows`.

        A runner with logits in PyTorch calls `sampling.sampler.sample`; one that finds argmaxes by itself makes
        logits for `batch.sampling.samples` only and calls `sampling.sampler.choose`.

        A sample whose logits are not finite gets NOT_FINITE for a token, and what is not finite never reaches another
        sequence, also not the next owner of its blocks.
        """
        ...

    def close(self) -> None: ...


@runtime_checkable
class AdapterRunner(Runner, Protocol):
    """One that can compute each sequence of a step with a low-rank adapter of its own. A row's result does not depend
    on which others the step has."""

    def install(self, slot: int, adapter: LowRankAdapter) -> None:
        """Into a slot that no sequence is computed with; any thread."""
        ...

    def remove(self, slot: int) -> None:
        """Between steps."""
        ...


class PendingStep(Protocol):
    def wait(self) -> StepTokens: ...


@runtime_checkable
class AheadRunner(Runner, Protocol):
    """One that computes while others do something else."""

    def launch(self, batch: StepBatch, after: PendingStep | None = None) -> PendingStep | None:
        """Begin a step that is not empty; None: no token will come of it. With `fed_samples`, `after` is the step that
        they are of, whose samples are all argmaxes. It may not have ended, and may have NOT_FINITE for some: what those
        rows compute is nobody's."""
        ...


class LoadedModel(Protocol):
    """What worker/model/loader.py returns: a runner, the card and tokenizer blob a worker registers, the sizes that an
    adapter must fit."""

    runner: Runner
    card: Any  # shared.schemas.ModelCard
    tokenizer_blob: Any  # shared.schemas.TokenizerBlob
    config: ModelConfig
