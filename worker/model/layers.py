"""The pieces of a decoder layer that are not attention: linear, norm, rotation, activation.

Rotation works on neighbouring pairs as complex numbers, in place: one pass instead of five. So the rows of Q
and K are interleaved when the model is built (`interleave_pairs`); dot products do not see the order.
Sources: RoFormer (rotary embedding); Zhang and Sennrich (RMSNorm).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from worker.model.families.model_config import Activation, Rope

Linear = Callable[[torch.Tensor], torch.Tensor]

_PACK_BATCH = 16  # oneDNN picks a weight layout for one batch size; this one is good from 1 to 512 rows


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """`x [rows, in] -> [rows, out]` for a weight [out, in] and a bias [out].

    On a CPU in fp32 the weight is copied once into oneDNN's blocked layout: 1.1 to 3 times as fast as
    `F.linear`, most at 2 to 32 rows. The ops are those torch.compile's frozen graphs use; where this build of
    torch lacks them, `F.linear` does the same.
    """
    if weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        ops = torch.ops.mkldnn
        if hasattr(ops, "_reorder_linear_weight") and hasattr(ops, "_linear_pointwise"):
            packed = ops._reorder_linear_weight(weight, _PACK_BATCH)
            apply = ops._linear_pointwise
            return lambda x: apply(x, packed, bias, "none", [], "")
    return lambda x: F.linear(x, weight, bias)


def interleave_pairs(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """[heads * (2, pair), ..] -> [heads * (pair, 2), ..]: the halves of a rotated pair become neighbours."""
    pairs = weight.reshape(-1, 2, head_dim // 2, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape)


def rotation_table(rope: Rope, num_positions: int, dtype: torch.dtype) -> torch.Tensor:
    """magnitude * exp(i * position * frequency), [num_positions, head_dim / 2], complex. Half precisions rotate in
    fp32."""
    real = torch.float64 if dtype == torch.float64 else torch.float32
    angles = torch.outer(torch.arange(num_positions, dtype=real), torch.tensor(rope.frequencies, dtype=real))
    return torch.polar(torch.full_like(angles, rope.magnitude), angles)


def rotate(heads: torch.Tensor, rotation: torch.Tensor) -> None:
    """Turn the pairs of `heads` [rows, num_heads, head_dim] in place by `rotation` [rows, 1, head_dim / 2]."""
    if heads.dtype in (torch.float32, torch.float64):
        torch.view_as_complex(heads.view(*heads.shape[:-1], -1, 2)).mul_(rotation)
    else:  # there are no complex numbers of half precision
        turned = torch.view_as_complex(heads.float().view(*heads.shape[:-1], -1, 2)) * rotation
        heads.copy_(torch.view_as_real(turned).flatten(-2))


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """Of the last dimension."""
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def gated(gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
    """[rows, 2 * intermediate] -> [rows, intermediate]: activation(gate) * up."""
    gate, up = gate_up.chunk(2, -1)
    active = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
    return active.mul_(up)


@dataclass(frozen=True, slots=True)
class Operations:
    """What a layer is computed by, as the functions here; a device may have its own."""

    make_linear: Callable[[torch.Tensor, torch.Tensor | None], Linear] = make_linear
    rms_norm: Callable[[torch.Tensor, torch.Tensor | None, float], torch.Tensor] = rms_norm
    rotate: Callable[[torch.Tensor, torch.Tensor], None] = rotate
    gated: Callable[[torch.Tensor, Activation], torch.Tensor] = gated
