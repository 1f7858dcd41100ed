"""Adapters in the CPU kernels: what PyTorch adds, the same bits in any batch, and nothing to rows without one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.model.conftest import Load
from tests.model.cpu.conftest import SETS
from tests.model.cpu.kernel_cache import kernel_cache
from tests.model.cpu.rounded import WIDE, write_rounded_model
from tests.model.lora.adapters import ALL, write_adapter
from tests.model.stepper import Sequence, Stepper, seqs_of
from tests.model.tiny_model import VOCAB, write_model
from worker.model.cpu.build import find_compiler
from worker.model.cpu.choice import KernelConfig
from worker.model.lora.peft_folder import read_adapter

pytestmark = [
    pytest.mark.timeout(300),  # the first of them compiles
    pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler"),
]
Kernels = Callable[..., KernelConfig]
ADAPTERS: list[dict[str, Any]] = [{}, {"modules": ("q_proj", "v_proj"), "r": 1}, {"modules": ALL[3:], "r": 7}]
LENGTHS = [1, 2, 16, 17, 40, 80, 150, 300]
NEW_TOKENS = 4


@pytest.fixture(scope="session")
def kernels(request: pytest.FixtureRequest) -> Kernels:
    cache = str(kernel_cache(request.config))
    usual: dict[str, Any] = {"mode": "native", "activations": "int16", "library_cache": cache}
    return lambda **changes: KernelConfig(**usual | changes)


def with_adapters(model: Any, folder: Path) -> Any:
    for slot, changes in enumerate(ADAPTERS):
        path = write_adapter(folder / f"adapter{slot}", model.config, seed=slot, **changes)
        model.runner.install(slot, read_adapter(str(path), model.config, max_rank=16)[0])
    return model.runner


def prompts() -> list[list[int]]:
    generator = np.random.default_rng(0)
    return [generator.integers(0, VOCAB, length).tolist() for length in LENGTHS]


@pytest.mark.parametrize("shape", [WIDE, {}], ids=["whole blocks", "filled up"])
@pytest.mark.parametrize("instructions", SETS)
def test_logits_are_those_of_pytorch(
    load: Load, kernels: Kernels, tmp_path: Path, instructions: str, shape: dict[str, Any]
) -> None:
    folder = write_rounded_model(tmp_path / "model", **shape)
    config = kernels(kv_cache_type="float32", instructions=instructions)
    runners = [with_adapters(load(folder, kernels=kind, kv_cache_bytes=8 << 20), tmp_path) for kind in (None, config)]

    def logits(runner: Any) -> torch.Tensor:
        work = [(Sequence(ids, adapter=index % 4 - 1), len(ids)) for index, ids in enumerate(prompts())]
        return runner.logits(Stepper(runner).batch(work))

    expected, made = map(logits, runners)
    tolerance = 5e-3 if shape else 0.2  # what is filled up is rounded anew
    assert (made - expected).abs().max() < tolerance * expected.std()


class Recorder(Stepper):
    """Keeps the bytes of the logits that each token was chosen by."""

    def __init__(self, runner: Any, seed: int) -> None:
        super().__init__(runner, seed)
        self.logits: dict[Sequence, list[bytes]] = {}

    def step(self, work: list[tuple[Sequence, int]]) -> None:
        batch = self.batch(work)
        logits = self.runner.logits(batch).numpy()  # type: ignore[attr-defined]
        for sequence, count in work:
            sequence.num_computed += count
        for seq in seqs_of(batch):
            self.logits.setdefault(work[seq][0], []).append(logits[seq].tobytes())
            work[seq][0].token_ids.append(int(logits[seq].argmax()))


def sequences() -> list[Sequence]:
    """Each prompt with no adapter and with each."""
    return [Sequence(list(ids), max_new=NEW_TOKENS, adapter=slot) for ids in prompts() for slot in range(-1, 3)]


def test_bits_are_the_same_alone_and_beside_other_adapters_and_none(
    load: Load, kernels: Kernels, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "model", num_hidden_layers=2, max_position_embeddings=1024)
    model = load(folder, kernels=kernels(), kv_cache_bytes=32 << 20)
    plain: list[list[bytes]] = []  # of a model that never had an adapter
    for sequence in sequences():
        if sequence.adapter < 0:
            recorder = Recorder(model.runner, 0)
            recorder.run([sequence], max_chunk=1024)
            plain += recorder.logits.values()
    expected: list[list[bytes]] = []
    runner = with_adapters(model, tmp_path)
    for sequence in sequences():
        recorder = Recorder(runner, 0)
        recorder.run([sequence], max_chunk=1024)
        expected += recorder.logits.values()
    assert expected[::4] == plain
    assert len(set(map(tuple, expected))) == len(expected)
    for seed, threads in enumerate((1, 2, 3, 2, 3, 2)):
        other = with_adapters(load(folder, kernels=kernels(), threads=threads, kv_cache_bytes=32 << 20), tmp_path)
        recorder, batch = Recorder(other, seed), sequences()
        recorder.run(batch, max_chunk=(48, 7, 700)[seed % 3], arrival=(1.0, 0.5, 0.2)[seed % 3])
        assert [recorder.logits[sequence] for sequence in batch] == expected


def test_a_slot_is_emptied_and_filled_again(load: Load, kernels: Kernels, tmp_path: Path) -> None:
    model = load(write_model(tmp_path / "model"), kernels=kernels())
    runner = with_adapters(model, tmp_path)
    batch = Stepper(runner).batch([(Sequence([5, 9, 3], adapter=0), 3)])
    first = runner.logits(batch)
    runner.remove(0)
    with pytest.raises(ValueError, match="out of bounds"):
        runner.logits(batch)
    assert torch.equal(with_adapters(model, tmp_path).logits(batch), first)


def test_a_number_that_is_none_stays_with_its_sequence(load: Load, kernels: Kernels, tmp_path: Path) -> None:
    model = load(write_model(tmp_path / "model"), kernels=kernels())
    runner = with_adapters(model, tmp_path)
    clean = [(Sequence(list(range(20)), adapter=slot), 20) for slot in (-1, 1)]
    expected = runner.logits(Stepper(runner).batch(clean))
    broken = read_adapter(str(tmp_path / "adapter0"), model.config, max_rank=16)[0]
    broken.layers[0]["q_proj"].down.fill_(float("nan"))
    runner.install(0, broken)
    work = [*((Sequence(list(range(20)), adapter=slot), 20) for slot in (-1, 1)), (Sequence([1, 2, 3], adapter=0), 3)]
    made = runner.logits(Stepper(runner).batch(work))
    assert torch.equal(made[:2], expected) and not made[2].isfinite().any()
