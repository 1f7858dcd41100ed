"""Random adapters in PEFT folders, and the same merged into the model's weights: the outside opinion of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from worker.model.families.model_config import ModelConfig
from worker.model.lora.low_rank import PROJECTIONS, projection_shapes

ALL = PROJECTIONS


def write_adapter(
    folder: Path,
    config: ModelConfig,
    *,
    seed: int = 0,
    modules: tuple[str, ...] = ALL,
    size: float = 1.0,
    **changes: Any,
) -> Path:
    """`changes` of adapter_config.json. Large enough that it changes every answer."""
    stated: dict[str, Any] = {
        "peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": list(modules), "bias": "none",
        "use_dora": False, "use_rslora": False, "rank_pattern": {}, "alpha_pattern": {}, "modules_to_save": None,
    } | changes  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(stated))
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for layer in range(config.num_layers):
        for module in modules:
            num_outputs, width = projection_shapes(config)[module]
            parent = "mlp" if module in PROJECTIONS[4:] else "self_attn"
            prefix = f"base_model.model.model.layers.{layer}.{parent}.{module}"
            tensors[f"{prefix}.lora_A.weight"] = torch.randn(stated["r"], width, generator=generator) / width**0.5
            up = torch.randn(num_outputs, stated["r"], generator=generator) * size / stated["r"] ** 0.5
            tensors[f"{prefix}.lora_B.weight"] = up
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def merge(model: Any, folder: Path) -> Any:
    """W + scale * B A, into the transformers package's model: what an adapter is by definition."""
    stated = json.loads((folder / "adapter_config.json").read_text())
    scale = stated["lora_alpha"] / (stated["r"] ** (0.5 if stated["use_rslora"] else 1))
    tensors = load_file(folder / "adapter_model.safetensors")
    parameters = dict(model.named_parameters())
    for name in tensors:
        if name.endswith("lora_A.weight"):
            stem = name.removesuffix("lora_A.weight")
            added = tensors[f"{stem}lora_B.weight"].double() @ tensors[name].double() * scale
            weight = parameters[stem.removeprefix("base_model.model.") + "weight"]
            weight.data = (weight.data.double() + added).to(weight.dtype)
    return model
