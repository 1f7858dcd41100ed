"""Reads an adapter as PEFT saves it: adapter_config.json and adapter_model.safetensors. Nothing in it is executed.

Whatever would change the answer and is not computed here is refused by its name in the file. All that is read is held
against the model's shapes before a runner sees it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from shared.errors import AdapterRefused
from worker.engine.adapters import digest_of
from worker.model.families.model_config import ModelConfig
from worker.model.lora.low_rank import PROJECTIONS, LowRank, LowRankAdapter, projection_shapes

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
_TENSOR = re.compile(
    r"base_model\.model\.model\.layers\.(\d+)\.(?:self_attn|mlp)\."
    rf"({'|'.join(PROJECTIONS)})\.lora_(A|B)(?:\.default)?\.weight"
)
# Kinds of LoRA that compute otherwise, and what else an adapter may bring along: any value but these is refused.
_MUST_BE_OFF = (
    "use_dora", "use_qalora", "fan_in_fan_out", "lora_bias", "rank_pattern", "alpha_pattern", "modules_to_save",
    "layer_replication", "trainable_token_indices", "alora_invocation_tokens", "target_parameters", "use_bdlora",
    "arrow_config", "kasa_config",
)  # fmt: skip
_PLAIN_STARTS = (True, False, None, "gaussian", "orthogonal", "eva")  # others change the base's weights

_Tensors = dict[tuple[int, str], dict[str, torch.Tensor]]


def read_adapter(path: str, config: ModelConfig, max_rank: int) -> tuple[LowRankAdapter, str]:
    """The adapter, and a digest of both files. Raises AdapterRefused, whose code says why."""
    folder = Path(path)
    stated_bytes, weights_bytes = _read(folder / CONFIG_FILE), _read(folder / WEIGHTS_FILE)
    try:
        stated: dict[str, Any] = json.loads(stated_bytes)
        rank, scale = _rank_and_scale(stated)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise _unreadable(folder / CONFIG_FILE, error) from error
    if rank > max_rank:
        raise AdapterRefused(
            f"the adapter's rank (r) is {rank}; this worker takes at most {max_rank} (HEADRACE_MAX_ADAPTER_RANK)",
            param="r",
            code="adapter_rank_too_high",
        )
    try:
        tensors = load(weights_bytes)
    except (SafetensorError, ValueError, KeyError) as error:
        raise _unreadable(folder / WEIGHTS_FILE, error) from error
    layers = _layers(_by_place(tensors, config.num_layers), rank, scale, config)
    return LowRankAdapter(rank, layers), digest_of((stated_bytes, weights_bytes))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise AdapterRefused(
            f"an adapter needs {path.name}; {path} cannot be read: {error.strerror}",
            param="path",
            code="adapter_not_found",
        ) from error


def _unreadable(path: Path, error: Exception) -> AdapterRefused:
    return AdapterRefused(f"{path} cannot be understood: {error!r}", param="path", code="adapter_unreadable")


def _rank_and_scale(stated: Mapping[str, Any]) -> tuple[int, float]:
    """Raises KeyError, TypeError and ValueError for what is no such configuration."""
    if stated.get("peft_type") != "LORA":
        raise _unsupported(f"peft_type {stated.get('peft_type')!r} (supported is 'LORA')", "peft_type")
    for option in _MUST_BE_OFF:
        if stated.get(option):
            raise _unsupported(option, option)
    if stated.get("bias", "none") != "none":
        raise _unsupported(f"bias {stated['bias']!r} (supported is 'none')", "bias")
    start = stated.get("init_lora_weights", True)
    if start not in _PLAIN_STARTS:
        raise _unsupported(f"init_lora_weights {start!r}, which changes the model itself", "init_lora_weights")
    rank, alpha = int(stated["r"]), float(stated["lora_alpha"])
    if rank < 1 or not math.isfinite(alpha):
        raise ValueError(f"r {rank}, lora_alpha {alpha}")
    return rank, alpha / (math.sqrt(rank) if stated.get("use_rslora") else rank)


def _unsupported(what: str, param: str) -> AdapterRefused:
    return AdapterRefused(f"an adapter with {what} is not supported", param=param, code="adapter_unsupported")


def _by_place(tensors: Mapping[str, torch.Tensor], num_layers: int) -> _Tensors:
    found: _Tensors = {}
    for name, tensor in tensors.items():
        place = _TENSOR.fullmatch(name)
        if place is None:
            raise _unsupported(f"the tensor {name!r} (adapted can be {', '.join(PROJECTIONS)})", "target_modules")
        layer, projection, half = int(place[1]), place[2], place[3]
        if layer >= num_layers:
            raise _mismatch(f"{name} is of layer {layer}; the model has {num_layers}")
        if not tensor.is_floating_point() or not bool(tensor.isfinite().all()):
            raise AdapterRefused(f"{name} has values that are no numbers", code="adapter_unreadable")
        found.setdefault((layer, projection), {})[half] = tensor
    if not found:
        raise AdapterRefused("the adapter has no tensors", code="adapter_unreadable")
    return found


def _layers(found: _Tensors, rank: int, scale: float, config: ModelConfig) -> tuple[dict[str, LowRank], ...]:
    shapes = projection_shapes(config)
    layers: tuple[dict[str, LowRank], ...] = tuple({} for _ in range(config.num_layers))
    for (layer, projection), halves in found.items():
        num_outputs, width = shapes[projection]
        for half, wanted in (("A", (rank, width)), ("B", (num_outputs, rank))):
            shape = tuple(halves[half].shape) if half in halves else "missing"
            if shape != wanted:
                raise _mismatch(f"lora_{half} of {projection} in layer {layer} is {shape}; {wanted} fits this model")
        layers[layer][projection] = LowRank(halves["A"].float().contiguous(), halves["B"].float() * scale)
    return layers


def _mismatch(what: str) -> AdapterRefused:
    return AdapterRefused(f"{what}: it was made for another model", code="adapter_shape_mismatch")
