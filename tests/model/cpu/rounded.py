"""Tiny models whose weights are eight-bit values already, so that quantizing them loses nothing, and what the kernels
then compute, done by PyTorch: activations rounded to int8 in blocks of 32 before every product."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.model.tiny_model import write_model
from worker.model.checkpoints.huggingface import HuggingFaceCheckpoint
from worker.model.cpu.blocks import quantize
from worker.model.decoder import DecoderModel
from worker.model.layers import Linear, Operations, make_linear
from worker.model.torch_runner import TorchRunner

WIDE = {"hidden_size": 96, "intermediate_size": 160, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 32}


def write_rounded_model(folder: Path, **changes: Any) -> Path:
    """Qwen2 gets biases, Qwen3 norms of its heads."""
    file = write_model(folder, **changes) / "model.safetensors"
    weights = load_file(file)
    for name in [name for name in weights if "self_attn" in name]:
        add_what_the_family_has(weights, name, changes)
    save_file({name: rounded(weight) for name, weight in weights.items()}, file)
    return folder


def add_what_the_family_has(weights: dict[str, torch.Tensor], name: str, changes: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(len(name) + ord(name[-10]))
    architecture, stem = changes.get("architectures", [""])[0], name.removesuffix(".weight")
    if architecture.startswith("Qwen2") and "o_proj" not in stem:
        weights[f"{stem}.bias"] = torch.randn(len(weights[name]), generator=generator)
    if architecture.startswith("Qwen3") and stem[-6:] in ("q_proj", "k_proj"):
        weights[f"{stem[:-4]}norm.weight"] = 1 + 0.3 * torch.randn(changes["head_dim"], generator=generator)


def rounded(weight: torch.Tensor) -> torch.Tensor:
    if weight.dim() != 2:
        return weight
    return torch.from_numpy(quantize(weight.numpy()).dequantize()[:, : weight.shape[1]].copy())


def rounding_runner(folder: Path) -> TorchRunner:
    """PyTorch with activations rounded as the kernels round them."""

    def make(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        linear = make_linear(weight, bias)
        return lambda x: linear(round_activations(x))

    device = torch.device("cpu")
    model = DecoderModel(
        HuggingFaceCheckpoint(folder),
        context_length=512,
        device=device,
        dtype=torch.float32,
        progress=lambda _: None,
        operations=Operations(make_linear=make),
    )
    return TorchRunner(model, num_blocks=64, device=device, dtype=torch.float32)


def round_activations(x: torch.Tensor) -> torch.Tensor:
    blocks = x.reshape(len(x), -1, 32)
    largest = blocks.abs().amax(-1, keepdim=True)
    inverse = torch.where(largest > 1e-30, 127 / largest, torch.zeros_like(largest))
    return (torch.round(blocks * inverse) * (largest / 127)).reshape(x.shape)
