"""The contract of docs/engine.md, bit for bit: a request's logits and tokens are the same alone, in any batch, in any
chunks, after preemption, on shared blocks, on any number of threads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.model.conftest import Load
from tests.model.cpu.conftest import SETS
from tests.model.cpu.rounded import WIDE
from tests.model.stepper import Sequence, Stepper, seqs_of
from tests.model.tiny_model import VOCAB, write_model
from worker.model.cpu.choice import KernelConfig

pytestmark = pytest.mark.timeout(300)  # the first of them compiles
Kernels = Callable[..., KernelConfig]
LENGTHS = [1, 2, 15, 16, 17, 33, 80, 254, 300, 530]  # segments of attention end at 256 and 512
PREFIX = list(range(40, 72))  # all but the shortest prompts begin with it: two blocks
NEW_TOKENS = 5
OTHER = {"kv_cache_type": "float32", "activations": "int8"}
MODELS: dict[str, dict[str, Any]] = {
    "narrow heads, filled up": {"num_hidden_layers": 2},
    "wide heads": WIDE | {"num_hidden_layers": 2, "head_dim": 64, "tie_word_embeddings": False},
}


class Recorder(Stepper):
    """Keeps the bytes of the logits each token was chosen by; preempts at random, and shares a prefix's blocks."""

    def __init__(self, runner: Any, seed: int, *, disturbs: float = 0.0) -> None:
        super().__init__(runner, seed)
        self.disturbs = disturbs
        self.logits: dict[Sequence, list[bytes]] = {}
        self.preempted: Counter[Sequence] = Counter()
        self.num_shared = 0
        self.prefix = Sequence(PREFIX)
        runner.logits(self.batch([(self.prefix, len(PREFIX))]))

    def step(self, work: list[tuple[Sequence, int]]) -> None:
        self.free = [block for block in self.free if block not in self.prefix.blocks]  # whoever ended gave them back
        work = [self.disturb(sequence, count) for sequence, count in work]
        batch = self.batch(work)
        logits = self.runner.logits(batch).numpy()  # type: ignore[attr-defined]
        for sequence, count in work:
            sequence.num_computed += count
        for seq in seqs_of(batch):
            sequence = work[seq][0]
            self.logits.setdefault(sequence, []).append(logits[seq].tobytes())
            sequence.token_ids.append(int(logits[seq].argmax()))

    def disturb(self, sequence: Sequence, count: int) -> tuple[Sequence, int]:
        if sequence.num_computed and self.preempted[sequence] < 3 and self.random.random() < self.disturbs:
            self.preempted[sequence] += 1
            sequence.num_computed, sequence.blocks = 0, []
        begins_alike = sequence.token_ids[: len(PREFIX)] == PREFIX and len(sequence.token_ids) > len(PREFIX)
        if self.disturbs and not sequence.num_computed and begins_alike:
            self.num_shared += 1
            sequence.num_computed, sequence.blocks = len(PREFIX), list(self.prefix.blocks)
        return sequence, min(count, len(sequence.token_ids) - sequence.num_computed)


def sequences() -> list[Sequence]:
    generator = np.random.default_rng(0)
    own = [generator.integers(0, VOCAB, length).tolist() for length in LENGTHS]
    return [Sequence(PREFIX + ids[len(PREFIX) :] if len(ids) > len(PREFIX) else ids, max_new=NEW_TOKENS) for ids in own]


@pytest.fixture(scope="module", params=MODELS.values(), ids=list(MODELS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), **request.param | {"max_position_embeddings": 1024})


def alone(runner: Any) -> list[list[bytes]]:
    found: list[list[bytes]] = []
    for sequence in sequences():
        recorder = Recorder(runner, 0)
        recorder.run([sequence], max_chunk=1024)
        found += recorder.logits.values()
    return found


@pytest.mark.parametrize(
    ("settings", "num_schedules"),
    [({}, 36), (OTHER, 9), pytest.param({}, 600, marks=pytest.mark.slow)],
    ids=["default", "other", "many"],
)
def test_logits_are_the_same_bits_under_every_schedule(
    load: Load, kernels: Kernels, folder: Path, settings: dict[str, Any], num_schedules: int
) -> None:
    config = kernels(**settings)
    expected = alone(load(folder, kernels=config, kv_cache_bytes=32 << 20).runner)
    num_preempted = num_shared = 0
    for threads in (1, 2, 3):
        runner = load(folder, kernels=config, threads=threads, kv_cache_bytes=32 << 20).runner
        for seed in range(num_schedules // 3):
            recorder, batch = Recorder(runner, seed, disturbs=0.05 * (seed % 3)), sequences()
            recorder.run(batch, max_chunk=(48, 7, 700, 3)[seed % 4], arrival=(1.0, 0.5, 0.2)[seed % 3])
            assert [recorder.logits[sequence] for sequence in batch] == expected
            num_preempted += recorder.preempted.total()
            num_shared += recorder.num_shared
    assert num_preempted > num_schedules and num_shared > num_schedules


def test_instruction_sets_with_fused_multiply_add_agree_to_the_last_bit(
    load: Load, kernels: Kernels, folder: Path
) -> None:
    fused = [name for name in SETS if name != "portable"]
    if len(fused) < 2:
        pytest.skip("this processor has one")
    made = [alone(load(folder, kernels=kernels(instructions=name), kv_cache_bytes=32 << 20).runner) for name in fused]
    assert all(other == made[0] for other in made)


def test_the_portable_kernels_hold_the_contract_too(load: Load, kernels: Kernels, folder: Path) -> None:
    runner = load(folder, kernels=kernels(instructions="portable"), kv_cache_bytes=32 << 20).runner
    expected, recorder, batch = alone(runner), Recorder(runner, 1, disturbs=0.05), sequences()
    recorder.run(batch, max_chunk=48, arrival=0.5)
    assert [recorder.logits[sequence] for sequence in batch] == expected
