"""The reference runner: any device PyTorch has, and the oracle of the faster ones.

Not batch-invariant to the last bit in fp32: a product's rounding depends on how many rows it has.

    rows         tokens of the step       num_seqs     sequences of the step
    num_samples  tokens to be made        hidden       model width
"""

from __future__ import annotations

import numpy as np
import torch

from worker.model.attention import BLOCK_SIZE, PagedAttention
from worker.model.llama import LlamaModel
from worker.model.runner import IntArray, StepBatch
from worker.model.sampler import sample


class TorchRunner:
    """See `Runner`. Belongs to one thread."""

    def __init__(self, model: LlamaModel, *, num_blocks: int, device: torch.device, dtype: torch.dtype) -> None:
        self.num_blocks = num_blocks
        self.block_size = BLOCK_SIZE
        self._model = model
        self._device = device
        self._attention = PagedAttention(model.config, num_blocks, device, dtype)

    @torch.inference_mode()
    def execute(self, batch: StepBatch) -> IntArray:
        if not len(batch.token_ids):
            return np.empty(0, np.int64)
        hidden = self._hidden(batch)
        if not len(batch.sample_seqs):  # every sequence still has prompt to go
            return np.empty(0, np.int64)
        seqs, row_of_sample = np.unique(batch.sample_seqs, return_inverse=True)  # choices may share a sequence
        return sample(self._logits(hidden, batch, seqs), row_of_sample, batch)

    @torch.inference_mode()
    def logits(self, batch: StepBatch) -> torch.Tensor:
        """Run the step and return every sequence's last logits, [num_seqs, vocab]. For comparison of runners."""
        return self._logits(self._hidden(batch), batch, np.arange(len(batch.seq_lens)))

    def close(self) -> None:
        """The pool and weights go with the runner."""

    def _hidden(self, batch: StepBatch) -> torch.Tensor:
        token_ids = torch.from_numpy(batch.token_ids).to(self._device)
        positions = torch.from_numpy(batch.positions).to(self._device)
        return self._model.forward(token_ids, positions, self._attention, self._attention.plan(batch))

    def _logits(self, hidden: torch.Tensor, batch: StepBatch, seqs: IntArray) -> torch.Tensor:
        last_rows = torch.from_numpy(batch.query_start[seqs + 1] - 1).to(self._device)
        return self._model.logits(hidden.index_select(0, last_rows))
