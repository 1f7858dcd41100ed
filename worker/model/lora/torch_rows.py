"""Low-rank adapters in PyTorch: grouped by adapter, the rows of each get what is added to the products of a layer.

Products are made by the device's own operations: where those are batch-invariant, so is what is added.

    place     of a layer's products: Q, K and V are one, gate and up another
    rows      of the step that have the adapter; each row has one at most
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from worker.engine.adapters import NO_ADAPTER
from worker.model.families.model_config import ModelConfig
from worker.model.layers import Linear, interleave_pairs
from worker.model.lora.low_rank import PROJECTIONS, LowRank, LowRankAdapter, projection_shapes
from worker.model.runner import StepBatch
from worker.model.sampling.rows import IntArray
from worker.model.sampling.transfer import place as to_device

Place = Literal["qkv", "output", "gate_up", "down"]
MakeLinear = Callable[[torch.Tensor, torch.Tensor | None], Linear]

_PLACES: Mapping[Place, tuple[str, ...]] = {
    "qkv": PROJECTIONS[:3],
    "output": PROJECTIONS[3:4],
    "gate_up": PROJECTIONS[4:6],
    "down": PROJECTIONS[6:],
}
_ROTATED = ("q_proj", "k_proj")


@dataclass(frozen=True, slots=True)
class _Part:
    """Added to the product's columns from `first` on."""

    first: int
    width: int
    down: Linear
    up: Linear


_LayerParts = Mapping[Place, tuple[_Part, ...]]


class TorchAdapter:
    """One adapter on its device. Immutable."""

    def __init__(
        self, adapter: LowRankAdapter, config: ModelConfig, make_linear: MakeLinear, device: torch.device,
        dtype: torch.dtype,
    ) -> None:  # fmt: skip
        shapes = projection_shapes(config)

        def part(projection: str, halves: LowRank, first: int) -> _Part:
            up = interleave_pairs(halves.up, config.head_dim) if projection in _ROTATED else halves.up
            down, up = halves.down.to(device, dtype), up.to(device, dtype)
            return _Part(first, shapes[projection][0], make_linear(down, None), make_linear(up.contiguous(), None))

        def parts(layer: Mapping[str, LowRank], names: tuple[str, ...]) -> tuple[_Part, ...]:
            firsts = np.cumsum([0, *(shapes[name][0] for name in names)]).tolist()
            placed = zip(names, firsts, strict=False)
            return tuple(part(name, layer[name], first) for name, first in placed if name in layer)

        self.layers: tuple[_LayerParts, ...] = tuple(
            {place: parts(layer, names) for place, names in _PLACES.items()} for layer in adapter.layers
        )


@dataclass(frozen=True, slots=True)
class AdaptedRows:
    """The rows of one step that have one adapter."""

    adapter: TorchAdapter
    rows: torch.Tensor  # [adapted] int64

    def add(self, layer: int, place: Place, product: torch.Tensor, inputs: torch.Tensor) -> None:
        """To the `product` [rows, out] of `inputs` [rows, in], in place."""
        parts = self.adapter.layers[layer][place]
        if parts:
            own = inputs.index_select(0, self.rows)
            for part in parts:
                columns = product.narrow(1, part.first, part.width)
                columns.index_add_(0, self.rows, part.up(part.down(own)))


def adapted_rows(batch: StepBatch, loaded: Mapping[int, TorchAdapter], device: torch.device) -> list[AdaptedRows]:
    """Grouped by adapter; empty for most steps."""
    if batch.adapters is None:
        return []
    of_row: IntArray = np.repeat(batch.adapters, np.diff(batch.query_start))
    slots = np.unique(of_row[of_row != NO_ADAPTER]).tolist()
    return [AdaptedRows(loaded[slot], to_device(np.flatnonzero(of_row == slot), device)) for slot in slots]
