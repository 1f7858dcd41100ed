"""What is not computed is refused by its name, with a code; what is read is held against the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shared.errors import AdapterRefused
from tests.model.lora.adapters import write_adapter
from worker.model.families.model_config import ModelConfig, Rope
from worker.model.lora.peft_folder import read_adapter

CONFIG = ModelConfig(
    architecture="llama", vocab_size=97, hidden_size=32, intermediate_size=48, num_layers=2, num_heads=4,
    num_kv_heads=2, head_dim=8, rms_norm_eps=1e-5, context_length=128, tied_embeddings=True, ropes=(Rope((1.0,) * 4),),
    layer_ropes=(0, 0), layer_windows=(None, None), attention_scale=1.0,
)  # fmt: skip


def refusal(folder: Path, config: ModelConfig = CONFIG) -> AdapterRefused:
    with pytest.raises(AdapterRefused) as error:
        read_adapter(str(folder), config, max_rank=8)
    return error.value


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"alpha_pattern": {"q_proj": 3}}, "alpha_pattern"),
        ({"rank_pattern": {"q_proj": 3}}, "rank_pattern"),
        ({"bias": "all"}, "bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights"),
        ({"peft_type": "IA3"}, "peft_type"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], param: str) -> None:
    error = refusal(write_adapter(tmp_path, CONFIG, **changes))
    assert (error.code, error.param) == ("adapter_unsupported", param) and param in error.message


def test_a_rank_over_the_limit_is_refused(tmp_path: Path) -> None:
    error = refusal(write_adapter(tmp_path, CONFIG, r=9))
    assert error.code == "adapter_rank_too_high" and "HEADRACE_MAX_ADAPTER_RANK" in error.message


def test_an_adapter_of_another_base_is_refused(tmp_path: Path) -> None:
    from dataclasses import replace

    folder = write_adapter(tmp_path, replace(CONFIG, hidden_size=64))
    assert refusal(folder).code == "adapter_shape_mismatch"


def test_missing_and_broken_files_are_told_apart(tmp_path: Path) -> None:
    assert refusal(tmp_path / "nowhere").code == "adapter_not_found"
    folder = write_adapter(tmp_path / "a", CONFIG)
    (folder / "adapter_model.safetensors").write_bytes(b"no tensors")
    assert refusal(folder).code == "adapter_unreadable"
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    assert refusal(folder).code == "adapter_unreadable"
