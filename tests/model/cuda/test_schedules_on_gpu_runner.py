"""Random schedules (tests/unit/worker/engine/schedules.py) through the engine on the GPU runner, with plain kernels.

In float64, so that every difference would be a wrong key, position, block or graph.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.model.conftest import Load
from tests.model.test_random_schedules import draw_params
from tests.model.tiny_model import write_model
from tests.unit.worker.engine.harness import Machine
from tests.unit.worker.engine.schedules import World, run_all
from worker.model.cuda.assembly import assemble
from worker.model.cuda.attention import BLOCK_SIZE
from worker.model.cuda.choice import CudaOptions
from worker.model.cuda.graphs import RerunRecorder
from worker.model.cuda.plain_kernels import PlainKernels
from worker.model.runner import Runner

CONTEXT = 512


@pytest.mark.parametrize("deterministic", [False, True])
def test_answers_are_those_of_running_alone(
    load: Load, tmp_path_factory: pytest.TempPathFactory, deterministic: bool
) -> None:
    folder = write_model(tmp_path_factory.mktemp("tiny"), num_hidden_layers=1)
    loaded: Any = load(folder, dtype="float64").runner
    recorder = RerunRecorder()

    def make(machine: Machine) -> Runner:
        options = CudaOptions(
            deterministic=deterministic, max_num_seqs=machine.max_num_seqs, max_step_tokens=machine.max_step_tokens
        )
        return assemble(
            loaded._model,
            options,
            PlainKernels,
            context_length=CONTEXT,
            num_blocks=machine.num_blocks,
            recorder=recorder,
        )

    world = World(Machine(block_size=BLOCK_SIZE, make_runner=make), draw_params, drafts=(0, 0, 5), overlaps=True)
    counts = run_all(world, range(4))
    assert min(counts[what] for what in ("found", "ahead")) > 0
    assert recorder.num_replays > 0
