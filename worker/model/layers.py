"""The pieces of a decoder layer that are not attention: linear, norm, rotation.

Rotation works on neighbouring pairs as complex numbers, in place: one pass instead of five. So the rows of Q
and K are interleaved when the model is built (`interleave_pairs`); dot products do not see the order.
Sources: RoFormer (rotary embedding); Zhang and Sennrich (RMSNorm).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

_PACK_BATCH = 16  # oneDNN picks a weight layout for one batch size; this one is good from 1 to 512 rows


def make_linear(weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """`x [rows, in] -> [rows, out]` for a weight [out, in].

    On a CPU in fp32 the weight is copied once into oneDNN's blocked layout: 1.1 to 3 times as fast as
    `F.linear`, most at 2 to 32 rows. The ops are those torch.compile's frozen graphs use; where this build of
    torch lacks them, `F.linear` does the same.
    """
    if weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        ops = torch.ops.mkldnn
        if hasattr(ops, "_reorder_linear_weight") and hasattr(ops, "_linear_pointwise"):
            packed = ops._reorder_linear_weight(weight, _PACK_BATCH)
            apply = ops._linear_pointwise
            return lambda x: apply(x, packed, None, "none", [], "")
    return lambda x: F.linear(x, weight)


def interleave_pairs(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """[heads * (2, pair), in] -> [heads * (pair, 2), in]: the halves of a rotated pair become neighbours."""
    rows, columns = weight.shape
    pairs = weight.view(rows // head_dim, 2, head_dim // 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns)


def rotation_table(frequencies: Sequence[float], num_positions: int, dtype: torch.dtype) -> torch.Tensor:
    """exp(i * position * frequency), [num_positions, head_dim / 2], complex. Half precisions rotate in fp32."""
    real = torch.float64 if dtype == torch.float64 else torch.float32
    angles = torch.outer(torch.arange(num_positions, dtype=real), torch.tensor(frequencies, dtype=real))
    return torch.polar(torch.ones_like(angles), angles)


def rotate(heads: torch.Tensor, rotation: torch.Tensor) -> None:
    """Turn the pairs of `heads` [rows, num_heads, head_dim] in place by `rotation` [rows, 1, head_dim / 2]."""
    if heads.dtype in (torch.float32, torch.float64):
        torch.view_as_complex(heads.view(*heads.shape[:-1], -1, 2)).mul_(rotation)
    else:  # there are no complex numbers of half precision
        turned = torch.view_as_complex(heads.float().view(*heads.shape[:-1], -1, 2)) * rotation
        heads.copy_(torch.view_as_real(turned).flatten(-2))


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)
