"""The container of a GGUF file: key-value pairs and tensors as they are stored, read in one pass over the header.

The `gguf` package's reader makes several numpy views for each of 100,000 strings and takes seconds; its tables of
types and block sizes, its names of tensors and its dequantization are used as they are.

    magic, version, counts | key, type, value ... | name, shape, type, offset ... | padding | data of each tensor

Source: the GGUF specification (versions 2 and 3, little-endian).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import (
    GGML_QUANT_SIZES,
    GGUF_DEFAULT_ALIGNMENT,
    GGUF_MAGIC,
    GGMLQuantizationType,
    GGUFValueType,
    quant_shape_to_byte_shape,
)

from shared.errors import ConfigurationError

_SCALARS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}
_MAX_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """`shape` has rows first, as numpy does. `data` is a view of the mapped file: [..., bytes a row], whole blocks."""

    tensor_type: GGMLQuantizationType
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]


class GGUFFile:
    """An open file, mapped as long as a tensor of it lives. ConfigurationError when it is none, or damaged."""

    def __init__(self, path: Path) -> None:
        try:
            content = np.memmap(path, np.uint8, "r").view(np.ndarray)
            cursor = _Cursor(content)
            self.fields, stored = _read_header(cursor)
            alignment = int(self.fields.get("general.alignment", GGUF_DEFAULT_ALIGNMENT))
            start = -(-cursor.offset // alignment) * alignment
            self.tensors = {name: _place(name, stated, content, start) for name, stated in stored.items()}
        except (ValueError, OSError, struct.error, ArithmeticError) as error:
            raise ConfigurationError(f"{path} cannot be read as a GGUF file: {error}") from error


class _Cursor:
    """Reads on from `offset`."""

    def __init__(self, content: npt.NDArray[np.uint8]) -> None:
        self._bytes = content.data
        self.offset = 0

    def number(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self._bytes, self.offset)
        self.offset += struct.calcsize(f"<{code}")
        return value

    def string(self) -> str:
        start = self.offset + 8
        self.offset = start + self.number("Q")
        return str(self._span(start, self.offset), "utf-8")

    def value(self, kind: GGUFValueType) -> Any:
        if kind == GGUFValueType.STRING:
            return self.string()
        if kind == GGUFValueType.ARRAY:
            return self._array(GGUFValueType(self.number("I")), self.number("Q"))
        return self.number(_SCALARS[kind])

    def _array(self, kind: GGUFValueType, length: int) -> list[Any]:
        if kind not in _SCALARS:
            return [self.value(kind) for _ in range(length)]
        dtype = np.dtype(_SCALARS[kind]).newbyteorder("<")
        start = self.offset
        self.offset += length * dtype.itemsize
        return np.frombuffer(self._span(start, self.offset), dtype).tolist()

    def _span(self, start: int, stop: int) -> memoryview:
        if stop > len(self._bytes):
            raise ValueError(f"it ends within its header, at {len(self._bytes)} of {stop} bytes")
        return self._bytes[start:stop]


@dataclass(frozen=True, slots=True)
class _Stated:
    tensor_type: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int


def _read_header(cursor: _Cursor) -> tuple[dict[str, Any], dict[str, _Stated]]:
    magic, version = cursor.number("I"), cursor.number("I")
    if magic != GGUF_MAGIC:
        raise ValueError("it does not begin with GGUF")
    if version not in (2, 3):
        raise ValueError(f"its version is {version}; supported are 2 and 3, little-endian")
    num_tensors, num_fields = cursor.number("Q"), cursor.number("Q")
    fields: dict[str, Any] = {}
    for _ in range(num_fields):
        key = cursor.string()
        fields[key] = cursor.value(GGUFValueType(cursor.number("I")))
    return fields, dict(_read_tensor(cursor) for _ in range(num_tensors))


def _read_tensor(cursor: _Cursor) -> tuple[str, _Stated]:
    name, num_dimensions = cursor.string(), cursor.number("I")
    if num_dimensions > _MAX_DIMENSIONS:
        raise ValueError(f"{name!r} has {num_dimensions} dimensions")
    sizes = [int(cursor.number("Q")) for _ in range(num_dimensions)]
    return name, _Stated(GGMLQuantizationType(cursor.number("I")), tuple(reversed(sizes)), cursor.number("Q"))


def _place(name: str, stated: _Stated, content: npt.NDArray[np.uint8], start: int) -> StoredTensor:
    block_size, _ = GGML_QUANT_SIZES[stated.tensor_type]
    if not stated.shape or stated.shape[-1] % block_size:
        raise ValueError(f"{name!r} of shape {stated.shape} does not divide into blocks of {block_size}")
    shape = quant_shape_to_byte_shape(stated.shape, stated.tensor_type)
    first = start + stated.offset
    last = first + int(np.prod(shape))
    if last > len(content):
        raise ValueError(f"it ends within {name!r}, at {len(content)} of {last} bytes")
    return StoredTensor(stated.tensor_type, stated.shape, content[first:last].reshape(shape))
