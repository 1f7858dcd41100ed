"""Weights as the kernels take them: small integers in blocks of 32 columns, each with its scale.

    w[row, k] = scale * (q - zero) + minimum        scale, minimum: half precision, one per row and block

    format        q            zero   minimum   from
    NIBBLES_MIN   0 .. 15      0      yes       Q4_1 exactly; Q4_K but for rounding its scales to half precision
    NIBBLES       0 .. 15      8      no        Q4_0 exactly
    BYTES         -128 .. 127  0      no        Q8_0 exactly; anything else quantized anew

Source of the stored layouts: the GGUF specification.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

BLOCK = 32
_SUPER = 256  # columns of a K-quant's outer block

ByteArray = npt.NDArray[np.uint8]
HalfArray = npt.NDArray[np.float16]


class Format(IntEnum):
    NIBBLES_MIN = 0
    NIBBLES = 1
    BYTES = 2


@dataclass(frozen=True, slots=True)
class BlockMatrix:
    """`values` [rows, columns], one q a byte (int8 seen as uint8 for BYTES); `scales`, `minimums` [rows, blocks]."""

    format: Format
    values: ByteArray
    scales: HalfArray
    minimums: HalfArray | None = None

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.values.shape
        return rows, columns

    def take_rows(self, rows: npt.NDArray[np.int64]) -> BlockMatrix:
        """The rows of these numbers, in this order; -1 is a row of zeros."""
        is_zero = rows < 0
        scales = self.scales[rows]
        scales[is_zero] = 0
        minimums = None
        if self.minimums is not None:
            minimums = self.minimums[rows]
            minimums[is_zero] = 0
        return BlockMatrix(self.format, self.values[rows], scales, minimums)

    def dequantize(self) -> npt.NDArray[np.float32]:
        """[rows, columns]. For tests and comparison."""
        q = self.values.view(np.int8) if self.format is Format.BYTES else self.values
        zero = 8 if self.format is Format.NIBBLES else 0
        blocks = q.reshape(*self.scales.shape, BLOCK).astype(np.float32) - zero
        blocks *= self.scales[..., None].astype(np.float32)
        if self.minimums is not None:
            blocks += self.minimums[..., None].astype(np.float32)
        return blocks.reshape(self.shape)


def quantize(weights: npt.NDArray[np.float32]) -> BlockMatrix:
    """BYTES from [rows, columns]; columns are filled up with zeros to whole blocks."""
    rows, columns = weights.shape
    padded = np.zeros((rows, -(-columns // BLOCK) * BLOCK), np.float32)
    padded[:, :columns] = weights
    blocks = padded.reshape(rows, -1, BLOCK)
    scales = np.minimum(np.abs(blocks).max(-1) / 127, np.finfo(np.float16).max).astype(np.float16)
    divisors = scales.astype(np.float32)
    inverse = np.divide(1, divisors, out=np.zeros_like(divisors), where=divisors > 0)
    values = np.rint(blocks * inverse[..., None]).clip(-127, 127).astype(np.int8)
    return BlockMatrix(Format.BYTES, values.reshape(padded.shape).view(np.uint8), scales)


def from_stored(type_name: str, data: ByteArray, columns: int) -> BlockMatrix | None:
    """What a GGUF file stores, kept as it is: `data` [rows, bytes a row]. None for a type with no such reading."""
    reader = _READERS.get(type_name)
    if reader is None or columns % BLOCK:
        return None
    return reader(data)


def _read_q4_1(data: ByteArray) -> BlockMatrix:
    blocks = data.reshape(len(data), -1, 20)
    values = _nibbles(blocks[..., 4:])
    return BlockMatrix(Format.NIBBLES_MIN, values, _halves(blocks, 0), _halves(blocks, 2))


def _read_q4_0(data: ByteArray) -> BlockMatrix:
    blocks = data.reshape(len(data), -1, 18)
    return BlockMatrix(Format.NIBBLES, _nibbles(blocks[..., 2:]), _halves(blocks, 0))


def _read_q8_0(data: ByteArray) -> BlockMatrix:
    blocks = data.reshape(len(data), -1, 34)
    values = np.ascontiguousarray(blocks[..., 2:]).reshape(len(data), -1)
    return BlockMatrix(Format.BYTES, values, _halves(blocks, 0))


def _read_q4_k(data: ByteArray) -> BlockMatrix:
    """Eight blocks share d and dmin; each has six bits of its own to scale either: w = d s q - dmin m."""
    outer = data.reshape(len(data), -1, 144)
    d, dmin = (_halves(outer, at).astype(np.float32)[..., None] for at in (0, 2))
    packed = outer[..., 4:16].reshape(*outer.shape[:2], 3, 4)
    first, second, third = packed[..., 0, :], packed[..., 1, :], packed[..., 2, :]
    steps = np.concatenate((first & 63, (third & 15) | (first >> 6 << 4)), -1)  # [rows, outer, 8]
    lows = np.concatenate((second & 63, (third >> 4) | (second >> 6 << 4)), -1)
    values = _nibbles(outer[..., 16:].reshape(len(data), -1, 32), BLOCK)
    scales, minimums = ((d * steps).astype(np.float16), (-dmin * lows).astype(np.float16))
    rows = len(data)
    return BlockMatrix(Format.NIBBLES_MIN, values, scales.reshape(rows, -1), minimums.reshape(rows, -1))


def _halves(blocks: ByteArray, at: int) -> HalfArray:
    return np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16)[..., 0]


def _nibbles(packed: ByteArray, width: int = BLOCK // 2) -> ByteArray:
    """[rows, groups, width] -> [rows, columns]: of each group the low halves, then the high ones."""
    assert packed.shape[-1] == width
    both = np.concatenate((packed & np.uint8(15), packed >> np.uint8(4)), -1)
    return both.reshape(len(packed), -1)


_READERS: dict[str, Callable[[ByteArray], BlockMatrix]] = {
    "Q4_0": _read_q4_0,
    "Q4_1": _read_q4_1,
    "Q4_K": _read_q4_k,
    "Q8_0": _read_q8_0,
}
