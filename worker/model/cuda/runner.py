"""The runner of a GPU: attention over block tables, decode steps as recorded graphs, one wait a step.

    launch   arrays to the device by one copy; forward (a graph's replay, or eager); logits; tokens chosen
    wait     the only place where the host waits for the device

`launch` returns while the device works. The next step may be launched before the last one is waited for, as long as
its arrays do not need that one's tokens. Holds on any device; graphs come where there are some.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Generic

import numpy as np
import torch

from worker.model.cuda.attention import BLOCK_SIZE
from worker.model.cuda.choosing import PendingTokens
from worker.model.cuda.graphs import DecodeGraphs, padded, padding_only
from worker.model.cuda.inputs import StepInputs
from worker.model.decoder import Attention, DecoderModel, Plan
from worker.model.lora.low_rank import LowRankAdapter
from worker.model.lora.torch_rows import TorchAdapter, adapted_rows
from worker.model.runner import StepBatch
from worker.model.sampling.rows import IntArray, StepTokens
from worker.model.sampling.transfer import place


class CudaRunner(Generic[Plan]):
    """See `Runner`. Belongs to one thread. Attention must read a sequence's own positions only, so that what is not
    finite stays with its sequence; `inputs` are those that it puts its plan into."""

    def __init__(
        self,
        model: DecoderModel,
        attention: Attention[Plan],
        inputs: StepInputs,
        *,
        num_blocks: int,
        graphs: DecodeGraphs | None,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = BLOCK_SIZE
        self._model = model
        self._attention = attention
        self._inputs = inputs
        self._graphs = graphs
        self._adapters: dict[int, TorchAdapter] = {}
        if graphs is not None:
            shape = (graphs.sizes[-1], model.config.hidden_size)
            self._graph_output = torch.zeros(shape, dtype=model.dtype, device=model.device)
            with torch.inference_mode(), _current(model.device):
                graphs.record(self._run_of_size)

    def execute(self, batch: StepBatch) -> StepTokens:
        if not len(batch.token_ids):
            return StepTokens(np.empty(0, np.int64))
        pending = self.launch(batch)
        return StepTokens(np.empty(0, np.int64)) if pending is None else pending.wait()

    @torch.inference_mode()
    def launch(self, batch: StepBatch, after: PendingTokens | None = None) -> PendingTokens | None:
        """See `AheadRunner`."""
        with _current(self._model.device):
            hidden = self._hidden(batch, None if after is None else after.argmaxes)
            if not len(batch.sample_rows):  # every sequence still has prompt to go
                return None
            rows, row_of_sample = np.unique(batch.sample_rows, return_inverse=True)  # choices may share a row
            logits = self._logits(hidden, rows)
            return PendingTokens(logits, row_of_sample, batch.sampling)

    @torch.inference_mode()
    def logits(self, batch: StepBatch) -> torch.Tensor:
        """Run the step and return every sequence's last logits, [num_seqs, vocab]. For comparison of runners."""
        with _current(self._model.device):
            return self._logits(self._hidden(batch), batch.query_start[1:] - 1)

    @torch.inference_mode()
    def install(self, slot: int, adapter: LowRankAdapter) -> None:
        """See `AdapterRunner`."""
        with _current(self._model.device):
            self._adapters[slot] = self._model.adapter(adapter)
            if self._model.device.type == "cuda":
                torch.cuda.synchronize()  # the steps' stream may be another one

    def remove(self, slot: int) -> None:
        del self._adapters[slot]

    def close(self) -> None:
        """The pool, graphs and weights go with the runner."""

    def _hidden(self, batch: StepBatch, argmaxes: torch.Tensor | None = None) -> torch.Tensor:
        """[rows or more, hidden]; of a replay it is valid until the next one."""
        size = None if self._graphs is None else self._graphs.size_for(batch)
        if self._graphs is None or size is None:
            token_ids, positions, plan = self._stage(batch, argmaxes)
            adapted = adapted_rows(batch, self._adapters, self._model.device)
            return self._model.forward(token_ids, positions, self._attention, plan, adapted)
        self._stage(padded(batch, size), argmaxes)
        self._graphs.replay(size)
        return self._graph_output[:size]

    def _stage(self, batch: StepBatch, argmaxes: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor, Plan]:
        """Token ids, positions and plan, on their way to the device: for as many rows always at the same places.
        `argmaxes` are on it already: what `fed_samples` are of."""
        self._inputs.begin()
        token_ids, positions = self._inputs.put(batch.token_ids), self._inputs.put(batch.positions)
        plan = self._attention.plan(batch)
        self._inputs.send()
        if batch.fed_samples is not None:
            assert argmaxes is not None
            fed = argmaxes.index_select(0, place(batch.fed_samples, argmaxes.device))
            token_ids[: len(fed)].copy_(fed.clamp_min(0))
        return token_ids, positions, plan

    def _run_of_size(self, size: int) -> Callable[[], None]:
        token_ids, positions, plan = self._stage(padding_only(size))
        output = self._graph_output[:size]

        def run() -> None:
            output.copy_(self._model.forward(token_ids, positions, self._attention, plan))

        return run

    def _logits(self, hidden: torch.Tensor, rows: IntArray) -> torch.Tensor:
        return self._model.logits(hidden.index_select(0, place(rows, hidden.device)))


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Triton and events go by the thread's current device, and the thread that loads need not be the one that runs."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
