"""An adapter computes what its weights merged into the model's do, in the transformers package: alone, and with rows
of other adapters and of none in the same step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.model.conftest import Load
from tests.model.lora.adapters import ALL, merge, write_adapter
from tests.model.stepper import Sequence, Stepper
from tests.model.test_paged_forward import prompts

pytest.importorskip("transformers", reason="parity of adapters is held against the transformers package")

from tests.model.families.published import PUBLISHED, logits, save
from worker.model.lora.peft_folder import read_adapter

PROMPTS = prompts(0, [1, 2, 16, 17, 33, 60])
FAMILIES = ["smollm2", "llama, biases, linear rope", "mistral", "qwen2", "qwen3", "gemma3"]
ADAPTERS: dict[str, dict[str, Any]] = {
    "all projections": {},
    "q and v, rank 1": {"modules": ("q_proj", "v_proj"), "r": 1, "lora_alpha": 3},
    "mlp, rank 7, rslora": {"modules": ALL[4:], "r": 7, "use_rslora": True},
}


def install(runner: Any, config: Any, slot: int, folder: Path) -> None:
    runner.install(slot, read_adapter(str(folder), config, max_rank=16)[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_merged_weights(load: Load, tmp_path: Path, family: str) -> None:
    model = load(save(PUBLISHED[family].build(), tmp_path / "model"), dtype="float64")
    runner: Any = model.runner
    expected = [logits(PUBLISHED[family].build(), ids)[-1] for ids in PROMPTS]
    slots = [-1, 0, 1, 2, 0, -1]
    for slot, (name, changes) in enumerate(ADAPTERS.items()):
        folder = write_adapter(tmp_path / name, model.config, seed=slot, **changes)
        install(runner, model.config, slot, folder)
        merged = merge(PUBLISHED[family].build(), folder)
        for index in [index for index, wanted in enumerate(slots) if wanted == slot]:
            plain, expected[index] = expected[index], logits(merged, PROMPTS[index])[-1]
            assert (expected[index] - plain).abs().max() > 0.01
    asked = [Sequence(list(ids), adapter=slot) for ids, slot in zip(PROMPTS, slots, strict=True)]
    batch = Stepper(runner).batch([(sequence, len(sequence.token_ids)) for sequence in asked])
    torch.testing.assert_close(runner.logits(batch), torch.stack(expected).double(), rtol=0, atol=1e-4)


def test_decoding_side_by_side_makes_the_tokens_of_merged_weights(load: Load, tmp_path: Path) -> None:
    model = load(save(PUBLISHED["smollm2"].build(), tmp_path / "model"), dtype="float64")
    folder = write_adapter(tmp_path / "adapter", model.config)
    install(model.runner, model.config, 3, folder)
    sequences = [Sequence(list(ids), max_new=10, adapter=3 if i % 2 else -1) for i, ids in enumerate(PROMPTS)]
    Stepper(model.runner, 1).run(sequences, max_chunk=9, arrival=0.6)
    models = [PUBLISHED["smollm2"].build(), merge(PUBLISHED["smollm2"].build(), folder)]
    for index, sequence in enumerate(sequences):
        best = logits(models[index % 2], sequence.token_ids[:-1])[sequence.num_prompt - 1 :].argmax(-1)
        assert sequence.made == best.tolist()


def test_a_removed_adapter_leaves_its_slot_to_another(load: Load, tmp_path: Path) -> None:
    model = load(save(PUBLISHED["smollm2"].build(), tmp_path / "model"))
    runner: Any = model.runner
    folders = [write_adapter(tmp_path / str(seed), model.config, seed=seed) for seed in (1, 2)]
    made = []
    for folder in (*folders, folders[0]):
        install(runner, model.config, 0, folder)
        made.append(runner.logits(Stepper(runner).batch([(Sequence([5, 9, 3], adapter=0), 3)])))
        runner.remove(0)
    assert torch.equal(made[0], made[2]) and not torch.equal(made[0], made[1])
