"""Random schedules on a real model: see tests/unit/worker/engine/schedules.py.

In float64, where the rounding that depends on a batch's shape is far below the distance of two logits: so every
difference would be a wrong key, position or block.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.model.conftest import Load
from tests.model.tiny_model import write_model
from tests.unit.worker.engine.harness import Machine
from tests.unit.worker.engine.schedules import World, run_all
from worker.model.attention import BLOCK_SIZE
from worker.model.runner import Runner
from worker.model.torch_runner import TorchRunner

SEEDS_PER_TEST = 100


def draw_params(rng: random.Random) -> dict[str, Any]:
    return {"n": rng.choice([1, 1, 2]), "ignore_eos": rng.random() < 0.5}


@pytest.fixture(scope="module")
def world(load: Load, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = write_model(tmp_path_factory.mktemp("tiny"), num_hidden_layers=2)
    model = load(folder, dtype="float64").runner
    assert isinstance(model, TorchRunner)
    return World(Machine(block_size=BLOCK_SIZE, make_runner=runner_over(model)), draw_params)


def runner_over(loaded: TorchRunner) -> Callable[[Machine], Runner]:
    """The same weights, a pool of the machine's own."""

    def make(machine: Machine) -> Runner:
        return TorchRunner(
            loaded._model, num_blocks=machine.num_blocks, device=loaded._device, dtype=loaded._attention._pool.dtype
        )

    return make


def test_answers_of_a_model_are_those_of_running_alone(world: World) -> None:
    counts = run_all(world, range(4))
    assert min(counts[what] for what in ("found", "preempted", "requeued", "resumed")) > 0


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", range(1000, 11_000, SEEDS_PER_TEST))
def test_answers_of_a_model_are_those_of_running_alone_ten_thousand_times(world: World, first_seed: int) -> None:
    counts = run_all(world, range(first_seed, first_seed + SEEDS_PER_TEST))
    assert min(counts[what] for what in ("found", "preempted", "displaced", "requeued", "resumed")) > 0
