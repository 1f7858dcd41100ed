# pyright: basic, reportIndexIssue=false
"""A decoder layer's operations on a GPU, by the kernels of row_kernels.py.

Fast: products are cuBLAS's, norms PyTorch's; rotation and gating, which take several passes in half precision, are one
kernel each. Invariant: all are ours, so that a row's bits do not hang on its neighbours.
"""

from __future__ import annotations

import torch

from worker.model.cuda import row_kernels
from worker.model.families.model_config import Activation
from worker.model.layers import Linear, Operations, make_linear, rms_norm

_GATE_BLOCK = 1024


def fast_operations() -> Operations:
    return Operations(make_linear, rms_norm, _rotate, _gated)


def invariant_operations() -> Operations:
    return Operations(_make_linear, _rms_norm, _rotate, _gated)


def _make_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """One tile size, however many rows there are: too large for few, too small for many, and the same for all."""
    weight = weight.contiguous()
    num_outputs, width = weight.shape
    tile = 64 if weight.dtype.itemsize == 2 else 32

    def apply(x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        output = x.new_empty(x.shape[0], num_outputs)
        row_kernels.linear_kernel[(-(-x.shape[0] // tile), -(-num_outputs // tile))](
            x,
            weight,
            weight if bias is None else bias,
            output,
            x.shape[0],
            num_outputs,
            width,
            HAS_BIAS=bias is not None,
            BLOCK_M=tile,
            BLOCK_N=tile,
            BLOCK_K=tile,
            num_warps=4,
            num_stages=4 if tile == 64 else 2,
            enable_fp_fusion=True,
        )
        return output

    return apply


def _rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """`x` [rows, width] or [rows, parts, width]; only rows may lie apart."""
    width = x.shape[-1]
    output = torch.empty(x.shape, device=x.device, dtype=x.dtype)
    row_kernels.norm_kernel[(x.shape[0], x[0].numel() // width)](
        x,
        x if weight is None else weight,
        output,
        EPSILON=eps,
        ROW_STRIDE=x.stride(0),
        WIDTH=width,
        WIDTH_PAD=_next_power_of_2(width),
        HAS_WEIGHT=weight is not None,
        num_warps=4,
        enable_fp_fusion=True,
    )
    return output


def _rotate(heads: torch.Tensor, rotation: torch.Tensor) -> None:
    num_heads, pairs = heads.shape[1], heads.shape[2] // 2
    row_kernels.rotate_kernel[(heads.shape[0],)](
        heads,
        torch.view_as_real(rotation),
        ROW_STRIDE=heads.stride(0),
        HEADS=num_heads,
        PAIRS=pairs,
        TOTAL_PAD=_next_power_of_2(num_heads * pairs),
        num_warps=4,
        enable_fp_fusion=True,
    )


def _gated(gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    output = gate_up.new_empty(rows, width)
    row_kernels.gate_kernel[(rows, -(-width // _GATE_BLOCK))](
        gate_up,
        output,
        WIDTH=width,
        IS_GELU=activation == "gelu_tanh",
        BLOCK=_GATE_BLOCK,
        num_warps=4,
        enable_fp_fusion=True,
    )
    return output


def _next_power_of_2(value: int) -> int:
    return 1 << (value - 1).bit_length()
