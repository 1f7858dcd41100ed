# pyright: basic, reportMissingImports=false
# ruff: noqa: PLR0913
"""What a decoder layer computes row by row, as Triton kernels: products, norms, rotation, gating.

Each output is summed in one order whatever else the step has: a product has one tile size for every number of rows and
runs along the inner dimension from its start; a norm is one program. So neighbours change no bit, which cuBLAS, that
picks another kernel for another number of rows, does not promise. Source: Thinking Machines (batch invariance).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows"])
def linear_kernel(
    x,  # [num_rows, width]
    weight,  # [num_outputs, width]
    bias,  # [num_outputs]
    output,  # [num_rows, num_outputs]
    num_rows,
    num_outputs,
    width,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Programs that share a weight tile are neighbours."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row, is_column = row < num_rows, column < num_outputs
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, width, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        is_inner = inner < width
        left = tl.load(x + row[:, None] * width + inner[None, :], mask=is_row[:, None] & is_inner[None, :], other=0.0)
        right = tl.load(
            weight + column[None, :] * width + inner[:, None], mask=is_column[None, :] & is_inner[:, None], other=0.0
        )
        total = tl.dot(left, right, total, input_precision="ieee")
    if HAS_BIAS:
        total += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
    target = output + row[:, None] * num_outputs + column[None, :]
    tl.store(target, total.to(output.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


@triton.jit
def norm_kernel(
    x,  # [rows, PARTS, WIDTH], rows lie ROW_STRIDE apart
    weight,  # [WIDTH]
    output,  # [rows, PARTS, WIDTH]
    EPSILON: tl.constexpr,
    ROW_STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_PAD: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
):
    """A program a row and part."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, WIDTH_PAD)
    values = tl.load(x + row * ROW_STRIDE + part * WIDTH + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    values = values * tl.rsqrt(tl.sum(values * values, 0) / WIDTH + EPSILON)
    if HAS_WEIGHT:
        values = values * tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    target = output + (row * tl.num_programs(1) + part) * WIDTH + column
    tl.store(target, values.to(output.dtype.element_ty), mask=column < WIDTH)


@triton.jit
def rotate_kernel(
    heads,  # [rows, HEADS, 2 * PAIRS], rows lie ROW_STRIDE apart
    rotation,  # [rows, PAIRS, 2] fp32: cosine and sine
    ROW_STRIDE: tl.constexpr,
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
    TOTAL_PAD: tl.constexpr,
):
    """A program a row; pair i is the elements 2 * i and 2 * i + 1 of a head. In place."""
    row, index = tl.program_id(0).to(tl.int64), tl.arange(0, TOTAL_PAD)
    is_there = index < HEADS * PAIRS
    turn = rotation + (row * PAIRS + index % PAIRS) * 2
    cosine, sine = tl.load(turn, mask=is_there, other=0.0), tl.load(turn + 1, mask=is_there, other=0.0)
    place = heads + row * ROW_STRIDE + index * 2
    real = tl.load(place, mask=is_there, other=0.0).to(tl.float32)
    imaginary = tl.load(place + 1, mask=is_there, other=0.0).to(tl.float32)
    kind = heads.dtype.element_ty
    tl.store(place, (real * cosine - imaginary * sine).to(kind), mask=is_there)
    tl.store(place + 1, (real * sine + imaginary * cosine).to(kind), mask=is_there)


@triton.jit
def gate_kernel(
    gate_up,  # [rows, 2 * WIDTH]
    output,  # [rows, WIDTH]
    WIDTH: tl.constexpr,
    IS_GELU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """activation(gate) * up, a program a row and BLOCK columns; tanh by way of the logistic function."""
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = column < WIDTH
    gate = tl.load(gate_up + row * 2 * WIDTH + column, mask=is_there, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * WIDTH + WIDTH + column, mask=is_there, other=0.0).to(tl.float32)
    slope = gate
    if IS_GELU:
        slope = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)  # 2 * sqrt(2 / pi)
    active = gate / (1.0 + tl.exp(-tl.maximum(slope, -80.0)))
    tl.store(output + row * WIDTH + column, (active * up).to(output.dtype.element_ty), mask=is_there)
