"""Random schedules through the engine on the CPU kernels (see tests/unit/worker/engine/schedules.py): equal tokens, and
for equal prefixes equal logits, to the last bit, whatever the step they were made in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.model.conftest import Load
from tests.model.test_random_schedules import draw_params
from tests.model.tiny_model import write_model
from tests.unit.worker.engine.harness import Machine
from tests.unit.worker.engine.schedules import World, run_all
from worker.model.cpu.assembly import BLOCK_SIZE
from worker.model.cpu.choice import KernelConfig
from worker.model.cpu.runner import CpuRunner
from worker.model.runner import StepBatch
from worker.model.sampling.rows import StepTokens

SEEDS_PER_TEST = 250
pytestmark = pytest.mark.timeout(300)  # the first of them compiles


class Witness:
    """The kernels, and the bytes of the logits that each prefix has ever led to. All machines share one pool, so each
    begins on what others left in it."""

    def __init__(self, runner: CpuRunner) -> None:
        self._runner = runner
        self._tokens = np.zeros(runner.num_blocks * BLOCK_SIZE, np.int64)  # of each slot
        self._logits_of: dict[bytes, bytes] = {}
        self.num_compared = 0

    def forget(self) -> None:
        self._logits_of.clear()
        self.num_compared = 0

    def of(self, machine: Machine) -> View:
        assert machine.num_blocks <= self._runner.num_blocks
        return View(self, machine.num_blocks)

    def execute(self, batch: StepBatch) -> StepTokens:
        made = self._runner.execute(batch)
        rows = batch.sample_rows
        if len(rows):
            again = self._runner._run(batch, rows, np.arange(len(rows)))
            assert batch.sampling is not None or again.tolist() == made.token_ids.tolist()
        self._tokens[batch.slot_mapping] = batch.token_ids
        for index, row in enumerate(rows.tolist()):
            self._compare(self._prefix(batch, row), self._runner._logits[index].tobytes())
        return made

    def _compare(self, prefix: bytes, logits: bytes) -> None:
        self.num_compared += prefix in self._logits_of
        assert self._logits_of.setdefault(prefix, logits) == logits

    def _prefix(self, batch: StepBatch, row: int) -> bytes:
        seq = int(np.searchsorted(batch.query_start, row, side="right")) - 1
        positions = np.arange(int(batch.positions[row]) + 1)
        blocks = batch.block_tables[seq, positions // BLOCK_SIZE]
        return self._tokens[blocks * BLOCK_SIZE + positions % BLOCK_SIZE].tobytes()


class View:
    """A runner with a pool of a machine's own size, at the beginning of the shared one."""

    block_size = BLOCK_SIZE

    def __init__(self, witness: Witness, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.execute = witness.execute

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def witness(load: Load, kernels: Callable[..., KernelConfig], tmp_path_factory: pytest.TempPathFactory) -> Witness:
    folder = write_model(tmp_path_factory.mktemp("tiny"), num_hidden_layers=2)
    runner: Any = load(folder, kernels=kernels(), threads=2, kv_cache_bytes=4 << 20).runner
    return Witness(runner)


def run(witness: Witness, first_seed: int, count: int) -> None:
    world = World(Machine(block_size=BLOCK_SIZE, make_runner=witness.of), draw_params)
    witness.forget()
    counts = run_all(world, range(first_seed, first_seed + count))
    assert min(counts[what] for what in ("found", "preempted", "requeued", "resumed", "drafted", "accepted")) > 0
    assert witness.num_compared > 100 * count


def test_logits_and_tokens_are_those_of_running_alone(witness: Witness) -> None:
    run(witness, 0, 25)


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", range(1000, 11_000, SEEDS_PER_TEST))
def test_logits_and_tokens_are_those_of_running_alone_ten_thousand_times(witness: Witness, first_seed: int) -> None:
    run(witness, first_seed, SEEDS_PER_TEST)
