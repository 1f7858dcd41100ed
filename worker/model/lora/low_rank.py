"""A low-rank adapter as runners take it: for some projections of some layers, what is added to their product.

    y = W x + up (down x)       down [rank, in], up [out, rank], scale included; fp32

Projections have Hugging Face's names, and rows of Q and K its order: the halves of a rotated pair lie half a head
apart. Source: LoRA (Hu and others, 2021); rsLoRA for its other scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from worker.model.families.model_config import ModelConfig

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class LowRank:
    down: torch.Tensor  # [rank, in]
    up: torch.Tensor  # [out, rank]


@dataclass(frozen=True, slots=True)
class LowRankAdapter:
    """`layers` has a mapping of projections for each layer of the model; what is missing is not adapted."""

    rank: int
    layers: tuple[Mapping[str, LowRank], ...]


def projection_shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """[out, in] of each projection."""
    hidden, mlp = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes = ((query, hidden), (key, hidden), (key, hidden), (hidden, query), (mlp, hidden), (mlp, hidden))
    return dict(zip(PROJECTIONS, (*shapes, (hidden, mlp)), strict=True))
