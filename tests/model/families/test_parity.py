"""Every family computes what the transformers package computes, batched, chunked and paged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.model.conftest import Load
from tests.model.stepper import Sequence, Stepper
from tests.model.test_paged_forward import prompts

pytest.importorskip("transformers", reason="parity of model families is held against the transformers package")

from tests.model.families.published import PUBLISHED, logits, reopened, save

PROMPTS = prompts(0, [1, 2, 16, 17, 33, 60, 130])


@pytest.fixture(scope="module", params=PUBLISHED.values(), ids=list(PUBLISHED))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    published = request.param.build()
    return published, save(published, tmp_path_factory.mktemp("published"))


def test_logits_are_those_of_transformers(model: tuple[Any, Path], load: Load) -> None:
    published, folder = model
    runner: Any = load(folder).runner
    stepper = Stepper(runner)
    sequences = [Sequence(list(ids)) for ids in PROMPTS]
    stepper.step([(sequence, len(sequence.token_ids) // 2) for sequence in sequences[2:]])
    work = [(sequence, len(sequence.token_ids) - sequence.num_computed) for sequence in sequences]
    expected = torch.stack([logits(published, ids)[-1] for ids in PROMPTS])
    torch.testing.assert_close(runner.logits(stepper.batch(work)), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("seed", "max_chunk"), [(1, 1), (2, 9), (3, 200)])
def test_greedy_tokens_are_those_of_transformers(
    model: tuple[Any, Path], load: Load, seed: int, max_chunk: int
) -> None:
    published, folder = model
    sequences = [Sequence(list(ids), max_new=12) for ids in PROMPTS]
    Stepper(load(folder, dtype="float64").runner, seed).run(sequences, max_chunk=max_chunk, arrival=0.6)
    for sequence in sequences:
        best = logits(published, sequence.token_ids[:-1])[sequence.num_prompt - 1 :].argmax(-1)
        assert sequence.made == best.tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["llama 3.1", "gemma3"])
def test_half_precision_shards_are_computed_in_full(load: Load, tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    folder = save(PUBLISHED[name].build().to(dtype), tmp_path, max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    runner: Any = load(folder).runner
    found = runner.logits(Stepper(runner).batch([(Sequence(list(ids)), len(ids)) for ids in PROMPTS]))
    published = reopened(folder)
    expected = torch.stack([logits(published, ids)[-1] for ids in PROMPTS])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
