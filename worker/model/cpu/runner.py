"""The fast runner on a CPU: one native call a step, from token ids to the argmax of every sample.

Batch-invariant to the last bit: docs/engine.md says exactly when. Logits leave the kernels only for rows whose
sampling needs them, into a buffer that is used again.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from worker.model.cpu.adapters import install_adapter
from worker.model.cpu.assembly import BLOCK_SIZE
from worker.model.cpu.library import NativeModel, StepArrays
from worker.model.families.model_config import ModelConfig
from worker.model.lora.low_rank import LowRankAdapter
from worker.model.runner import StepBatch
from worker.model.sampling.rows import IntArray, StepTokens
from worker.model.sampling.sampler import choose

FloatArray = npt.NDArray[np.float32]


class CpuRunner:
    """See `Runner`. Belongs to one thread; its own threads are the model's."""

    def __init__(self, model: NativeModel, config: ModelConfig, *, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = BLOCK_SIZE
        self._model = model
        self._config = config
        self._logits: FloatArray = np.empty((0, config.vocab_size), np.float32)

    def execute(self, batch: StepBatch) -> StepTokens:
        if not len(batch.token_ids):
            return StepTokens(np.empty(0, np.int64))
        rows, output_of_sample = np.unique(batch.sample_rows, return_inverse=True)  # choices may share a row
        logits_rows = np.full(len(rows), -1, np.int64)
        sampling = batch.sampling
        if sampling is not None:
            needed = np.unique(output_of_sample[sampling.samples])
            logits_rows[needed] = np.arange(len(needed))
        best = self._run(batch, rows, logits_rows)
        token_ids = best[output_of_sample]
        if sampling is None:
            return StepTokens(token_ids)
        needed_rows = logits_rows[output_of_sample[sampling.samples]]
        with torch.inference_mode():
            return choose(token_ids, torch.from_numpy(self._logits), needed_rows, sampling)

    def logits(self, batch: StepBatch) -> torch.Tensor:
        """Run the step and return every sequence's last logits, [num_seqs, vocab]. For comparison of runners."""
        num_seqs = len(batch.seq_lens)
        self._run(batch, batch.query_start[1:] - 1, np.arange(num_seqs))
        return torch.from_numpy(self._logits[:num_seqs].copy())

    def install(self, slot: int, adapter: LowRankAdapter) -> None:
        """See `AdapterRunner`."""
        install_adapter(self._model, slot, adapter, self._config)

    def remove(self, slot: int) -> None:
        self._model.clear_adapter(slot)

    def close(self) -> None:
        self._model.close()

    def _run(self, batch: StepBatch, rows: IntArray, logits_rows: IntArray) -> IntArray:
        """The argmax of each of `rows`, or NOT_FINITE. Its logits go to row `logits_rows` of the buffer unless that is
        -1."""
        if len(logits_rows) and logits_rows.max() >= len(self._logits):
            self._logits = np.empty((len(logits_rows), self._logits.shape[1]), np.float32)
        best = np.empty(len(rows), np.int64)
        inputs = [
            np.ascontiguousarray(array, np.int64)
            for array in (
                batch.token_ids,
                batch.positions,
                batch.slot_mapping,
                batch.query_start,
                batch.seq_lens,
                batch.block_tables,
                rows,
                logits_rows,
            )
        ]
        num_seqs, max_blocks = batch.block_tables.shape
        pointers: list[int | None] = [array.ctypes.data for array in (*inputs, best, self._logits)]
        adapters = None if batch.adapters is None else np.ascontiguousarray(batch.adapters, np.int64)
        pointers.append(None if adapters is None else adapters.ctypes.data)
        self._model.step(
            StepArrays(len(batch.token_ids), num_seqs, max_blocks, len(rows), self._logits.shape[1], *pointers)
        )
        return best
