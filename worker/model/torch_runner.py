"""The reference runner: any device PyTorch has, and the oracle of the faster ones.

Not batch-invariant to the last bit in fp32: a product's rounding depends on how many rows it has.

What is not finite stays with its sequence: attention reads whole blocks and hides what is not the sequence's own,
but a hidden NaN is still a NaN. So blocks that got one are remembered, and cleared when they are written anew.

    rows         tokens of the step       num_seqs     sequences of the step
    num_samples  tokens to be made        hidden       model width
"""

from __future__ import annotations

import numpy as np
import torch

from worker.model.attention import BLOCK_SIZE, PagedAttention
from worker.model.decoder import DecoderModel
from worker.model.lora.low_rank import LowRankAdapter
from worker.model.lora.torch_rows import TorchAdapter, adapted_rows
from worker.model.runner import StepBatch
from worker.model.sampling.rows import IntArray, StepTokens
from worker.model.sampling.sampler import sample


class TorchRunner:
    """See `Runner`. Belongs to one thread."""

    def __init__(self, model: DecoderModel, *, num_blocks: int, device: torch.device, dtype: torch.dtype) -> None:
        self.num_blocks = num_blocks
        self.block_size = BLOCK_SIZE
        self._model = model
        self._device = device
        self._attention = PagedAttention(model.config, num_blocks, device, dtype)
        self._adapters: dict[int, TorchAdapter] = {}
        self._spoiled: set[int] = set()  # blocks that hold a NaN or an infinity

    @torch.inference_mode()
    def execute(self, batch: StepBatch) -> StepTokens:
        if not len(batch.token_ids):
            return StepTokens(np.empty(0, np.int64))
        hidden = self._hidden(batch)
        if not len(batch.sample_rows):  # every sequence still has prompt to go
            return StepTokens(np.empty(0, np.int64))
        rows, row_of_sample = np.unique(batch.sample_rows, return_inverse=True)  # choices may share a row
        return sample(self._logits(hidden, rows), row_of_sample, batch.sampling)

    @torch.inference_mode()
    def logits(self, batch: StepBatch) -> torch.Tensor:
        """Run the step and return every sequence's last logits, [num_seqs, vocab]. For comparison of runners."""
        return self._logits(self._hidden(batch), batch.query_start[1:] - 1)

    def install(self, slot: int, adapter: LowRankAdapter) -> None:
        """See `AdapterRunner`."""
        self._adapters[slot] = self._model.adapter(adapter)

    def remove(self, slot: int) -> None:
        del self._adapters[slot]

    def close(self) -> None:
        """The pool and weights go with the runner."""

    def _hidden(self, batch: StepBatch) -> torch.Tensor:
        self._clear_spoiled(batch)
        token_ids = torch.from_numpy(batch.token_ids).to(self._device)
        positions = torch.from_numpy(batch.positions).to(self._device)
        adapted = adapted_rows(batch, self._adapters, self._device)
        hidden = self._model.forward(token_ids, positions, self._attention, self._attention.plan(batch), adapted)
        is_finite = hidden.sum(-1, dtype=torch.float64).isfinite().cpu().numpy()  # [rows]
        if not is_finite.all():
            self._spoiled.update((batch.slot_mapping[~is_finite] // BLOCK_SIZE).tolist())
        return hidden

    def _clear_spoiled(self, batch: StepBatch) -> None:
        """A block whose first slot is written has a new owner."""
        if self._spoiled:
            first_slots = batch.slot_mapping[batch.slot_mapping % BLOCK_SIZE == 0]
            blocks = self._spoiled.intersection((first_slots // BLOCK_SIZE).tolist())
            self._attention.clear(sorted(blocks))
            self._spoiled -= blocks

    def _logits(self, hidden: torch.Tensor, rows: IntArray) -> torch.Tensor:
        return self._model.logits(hidden.index_select(0, torch.from_numpy(rows).to(self._device)))
