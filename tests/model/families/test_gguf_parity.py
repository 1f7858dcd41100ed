"""GGUF files of every architecture and block type compute what the transformers package does with their weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType

from tests.model.conftest import Load
from tests.model.stepper import Sequence, Stepper
from tests.model.test_paged_forward import prompts

pytest.importorskip("transformers", reason="parity of model families is held against the transformers package")

from tests.model.families.gguf_files import PublishedFile
from tests.model.families.published import PUBLISHED, Published, logits

F32 = GGMLQuantizationType.F32
PROMPTS = prompts(1, [1, 30, 70])
ARCHITECTURES = {
    "llama": "smollm2",
    "llama, divided frequencies": "llama 3.1",
    "llama, biases": "llama, biases, linear rope",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
}
TYPES = ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]
ONE_WIDE_LAYER = {
    "num_hidden_layers": 1,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def assert_parity(load: Load, path: Path, model: Any) -> None:
    runner: Any = load(path).runner
    work = [(Sequence(list(ids)), len(ids)) for ids in PROMPTS]
    expected = torch.stack([logits(model, ids)[-1] for ids in PROMPTS])
    torch.testing.assert_close(runner.logits(Stepper(runner).batch(work)), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("architecture", "name"), ARCHITECTURES.items(), ids=list(ARCHITECTURES))
def test_an_architecture_is_read_right(load: Load, tmp_path: Path, architecture: str, name: str) -> None:
    file = PublishedFile(PUBLISHED[name].build(), architecture.split(",")[0], F32)
    assert_parity(load, file.write(tmp_path / "m.gguf"), file.model)


def test_yarn_is_read_right(load: Load, tmp_path: Path) -> None:
    settings = PUBLISHED["qwen2, yarn, windows above"].settings | {"use_sliding_window": False}
    file = PublishedFile(Published("Qwen2", settings).build(), "qwen2", F32)
    assert_parity(load, file.write(tmp_path / "m.gguf"), file.model)


def test_gemma3_is_read_right(load: Load, tmp_path: Path) -> None:
    """With its period of six layers, which the file does not state."""
    settings = PUBLISHED["gemma3"].settings | {"num_hidden_layers": 7, "sliding_window_pattern": 6}
    file = PublishedFile(replace(PUBLISHED["gemma3"], settings=settings).build(), "gemma3", F32)
    assert_parity(load, file.write(tmp_path / "m.gguf"), file.model)


@pytest.mark.parametrize("kind", TYPES)
def test_a_type_of_blocks_is_read_right(load: Load, tmp_path: Path, kind: str) -> None:
    model = Published("Llama", ONE_WIDE_LAYER).build()
    file = PublishedFile(model, "llama", GGMLQuantizationType[kind])
    assert_parity(load, file.write(tmp_path / "m.gguf"), model)
