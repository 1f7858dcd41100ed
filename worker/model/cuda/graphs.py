"""Decode steps recorded once for each padded number of sequences, and replayed: no launch is paid a second time.

    sizes       1, 2, 4, 8, then multiples of 16; a step takes the least that holds it
    padding     sequences of one token that write and read block 0, which is scratch

The largest is recorded first, so that the others find room in its memory. A replay reads its inputs where they lay when
it was recorded and writes where it wrote then. Knows no CUDA: what records is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch

from worker.model.runner import IntArray, StepBatch

_SMALL_SIZES = (1, 2, 4, 8)
_MULTIPLE = 16


class Recorder(Protocol):
    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        """Runs it, more than once; what is returned does again what it did, on what then lies in the same memory."""
        ...


class CudaRecorder:
    """CUDA graphs in one memory pool: they are never replayed at the same time."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()
        self._pool: Any = None

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            run()  # compiles kernels and makes workspaces, which a recording must not
            run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            run()
        self._pool = self._pool or graph.pool()
        return graph.replay


class RerunRecorder:
    """Where there are no graphs: a replay runs the function again, on what then lies in the same memory."""

    def __init__(self) -> None:
        self.num_replays = 0

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        run()

        def replay() -> None:
            self.num_replays += 1
            run()

        return replay


class DecodeGraphs:
    """`record` comes before any `replay`."""

    def __init__(self, recorder: Recorder, max_num_seqs: int) -> None:
        self.sizes = graph_sizes(max_num_seqs)
        self._recorder = recorder
        self._replays: dict[int, Callable[[], None]] = {}

    def record(self, run_of_size: Callable[[int], Callable[[], None]]) -> None:
        for size in reversed(self.sizes):
            self._replays[size] = self._recorder.record(run_of_size(size))

    def size_for(self, batch: StepBatch) -> int | None:
        """None: not a step of one token a sequence, or of too many, or one with adapters, which no graph has."""
        num_seqs = len(batch.seq_lens)
        if len(batch.token_ids) != num_seqs or batch.adapters is not None:
            return None
        return next((size for size in self.sizes if size >= num_seqs), None)

    def replay(self, size: int) -> None:
        self._replays[size]()


def graph_sizes(max_num_seqs: int) -> list[int]:
    """Rising; the last holds `max_num_seqs`."""
    multiples = range(_MULTIPLE, max_num_seqs + _MULTIPLE, _MULTIPLE)
    sizes = [*_SMALL_SIZES, *multiples]
    return sizes[: next(i for i, size in enumerate(sizes) if size >= max_num_seqs) + 1]


def padded(batch: StepBatch, size: int) -> StepBatch:
    """A decode step with sequences of one token added at its end, up to `size`. Nothing is sampled of them."""
    if size == len(batch.seq_lens):
        return batch
    num_seqs = len(batch.seq_lens)

    def filled(values: IntArray, value: int) -> IntArray:
        longer = np.full((size, *values.shape[1:]), value, np.int64)
        longer[:num_seqs] = values
        return longer

    return StepBatch(
        token_ids=filled(batch.token_ids, 0),
        positions=filled(batch.positions, 0),
        slot_mapping=filled(batch.slot_mapping, 0),
        query_start=np.arange(size + 1),
        seq_lens=filled(batch.seq_lens, 1),
        block_tables=filled(batch.block_tables, 0),
        sample_rows=batch.sample_rows,
        sampling=batch.sampling,
        fed_samples=batch.fed_samples,
    )


def padding_only(size: int) -> StepBatch:
    nothing = np.empty(0, np.int64)
    empty = StepBatch(nothing, nothing, nothing, nothing, nothing, np.empty((0, 1), np.int64), nothing)
    return padded(empty, size)
