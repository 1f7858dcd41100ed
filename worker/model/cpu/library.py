"""The compiled kernels as Python sees them: kernels/abi.h, mirrored for ctypes.

Calls release the GIL. A `NativeModel` owns weights, KV pool and threads on the other side; arrays it is given are
copied, but for those of a step, which are read and written while the call lasts.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_void_p
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from worker.model.cpu.blocks import BlockMatrix

ABI_VERSION = 3
Floats = npt.NDArray[np.float32]


class Part(IntEnum):
    """Weights and vectors. Those from EMBEDDING on belong to no layer."""

    QUERY = 0
    KEY = 1
    VALUE = 2
    OUTPUT = 3
    GATE = 4
    UP = 5
    DOWN = 6
    ATTENTION_NORM = 7
    MLP_NORM = 8
    QKV_BIAS = 9
    QUERY_NORM = 10
    KEY_NORM = 11
    EMBEDDING = 12
    HEAD = 13
    FINAL_NORM = 14
    ROTATION = 15


class ActivationTerms(ctypes.Structure):
    """One or two of eight bits each, by what the activations are multiplied with."""

    _fields_ = (
        ("qkv", c_int32),
        ("output", c_int32),
        ("gate_and_up", c_int32),
        ("down", c_int32),
        ("head", c_int32),
    )


class ModelSizes(ctypes.Structure):
    _fields_ = (
        ("num_threads", c_int32),
        ("layers", c_int32),
        ("intermediate", c_int32),
        ("vocab", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("hidden", c_int32),
        ("unpadded_hidden", c_int32),
        ("head_dim", c_int32),
        ("unpadded_head_dim", c_int32),
        ("context", c_int32),
        ("kv_is_half", c_int32),
        ("terms", ActivationTerms),
        ("norm_epsilon", c_float),
        ("attention_scale", c_float),
        ("num_blocks", c_int64),
    )


class _WeightArrays(ctypes.Structure):
    _fields_ = (
        ("format", c_int32),
        ("rows", c_int32),
        ("columns", c_int32),
        ("values", c_void_p),
        ("scales", c_void_p),
        ("minimums", c_void_p),
    )


class StepArrays(ctypes.Structure):
    _fields_ = (
        ("num_rows", c_int64),
        ("num_seqs", c_int64),
        ("max_blocks", c_int64),
        ("num_outputs", c_int64),
        ("logits_stride", c_int64),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("query_start", c_void_p),
        ("seq_lens", c_void_p),
        ("block_tables", c_void_p),
        ("output_rows", c_void_p),
        ("logits_rows", c_void_p),
        ("best_ids", c_void_p),
        ("logits", c_void_p),
        ("adapters", c_void_p),
    )


class _LowRankArrays(ctypes.Structure):
    _fields_ = (
        ("rank", c_int32),
        ("rows", c_int32),
        ("columns", c_int32),
        ("down", c_void_p),
        ("up", c_void_p),
    )


_FAULTS: Mapping[int, str] = {1: "an argument is out of bounds", 2: "out of memory", 3: "a weight is missing"}
_SIGNATURES: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "abi_version": (c_int32, ()),
    "instructions": (c_char_p, ()),
    "create": (c_void_p, (POINTER(ModelSizes),)),
    "destroy": (None, (c_void_p,)),
    "set_weights": (c_int32, (c_void_p, c_int32, c_int32, POINTER(_WeightArrays))),
    "set_vector": (c_int32, (c_void_p, c_int32, c_int32, c_void_p, c_int64)),
    "set_low_rank": (c_int32, (c_void_p, c_int32, c_int32, c_int32, POINTER(_LowRankArrays))),
    "clear_adapter": (c_int32, (c_void_p, c_int32)),
    "step": (c_int32, (c_void_p, POINTER(StepArrays))),
    "multiply": (c_int32, (POINTER(_WeightArrays), c_void_p, c_int64, c_int32, c_void_p)),
}


class Library:
    """A loaded library. OSError when the file cannot be loaded, or is none of ours."""

    def __init__(self, path: Path) -> None:
        loaded = ctypes.CDLL(str(path))
        self._functions: dict[str, Any] = {}
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(loaded, f"headrace_{name}", None)
            if function is None:
                raise OSError(f"{path} lacks headrace_{name}")
            function.restype, function.argtypes = result, arguments
            self._functions[name] = function
        version = self._functions["abi_version"]()
        if version != ABI_VERSION:
            raise OSError(f"{path} speaks version {version}, not {ABI_VERSION}")
        self.instructions: str = self._functions["instructions"]().decode()

    def create(self, sizes: ModelSizes) -> NativeModel:
        return NativeModel(self._functions, sizes)

    def multiply(self, weights: BlockMatrix, inputs: npt.NDArray[np.float32], terms: int) -> npt.NDArray[np.float32]:
        """[rows, columns] by weights [outputs, columns] -> [rows, outputs]. For tests of the kernels."""
        rows, width = len(inputs), -(-weights.shape[0] // 16) * 16
        outputs = np.empty((rows, width), np.float32)
        inputs = np.ascontiguousarray(inputs, np.float32)
        arrays = _weight_arrays(weights)
        status = self._functions["multiply"](arrays, inputs.ctypes.data, rows, terms, outputs.ctypes.data)
        _check(status, "a product")
        return outputs[:, : weights.shape[0]]


class NativeModel:
    """A model on the other side; `close` frees it. MemoryError when there is no room for its KV pool."""

    def __init__(self, functions: Mapping[str, Any], sizes: ModelSizes) -> None:
        self._functions = functions
        self._handle: int | None = functions["create"](sizes)
        if self._handle is None:
            raise MemoryError("the model's KV cache does not fit in memory, or its sizes do not fit together")

    def set_weights(self, layer: int, part: Part, weights: BlockMatrix) -> None:
        """`layer` -1 for what belongs to none."""
        status = self._functions["set_weights"](self._handle, layer, part, _weight_arrays(weights))
        _check(status, f"{part.name} of layer {layer}")

    def set_vector(self, layer: int, part: Part, values: npt.NDArray[np.float32]) -> None:
        values = np.ascontiguousarray(values, np.float32)
        status = self._functions["set_vector"](self._handle, layer, part, values.ctypes.data, values.size)
        _check(status, f"{part.name} of layer {layer}")

    def set_low_rank(self, slot: int, layer: int, part: Part, down: Floats, up: Floats) -> None:
        """`down` [rank, in], `up` [out, rank], rank a multiple of four. Into a slot that no step uses; any thread."""
        down, up = np.ascontiguousarray(down, np.float32), np.ascontiguousarray(up, np.float32)
        arrays = _LowRankArrays(len(down), len(up), down.shape[1], down.ctypes.data, up.ctypes.data)
        _check(self._functions["set_low_rank"](self._handle, slot, layer, part, arrays), f"adapter's {part.name}")

    def clear_adapter(self, slot: int) -> None:
        """Between steps."""
        _check(self._functions["clear_adapter"](self._handle, slot), "clearing an adapter")

    def step(self, arrays: StepArrays) -> None:
        """One step; see kernels/abi.h."""
        _check(self._functions["step"](self._handle, arrays), "a step")

    def close(self) -> None:
        if self._handle is not None:
            self._functions["destroy"](self._handle)
            self._handle = None


def _weight_arrays(weights: BlockMatrix) -> _WeightArrays:
    """Valid while `weights` lives."""
    rows, columns = weights.shape
    minimums = None if weights.minimums is None else weights.minimums.ctypes.data
    values, scales = weights.values.ctypes.data, weights.scales.ctypes.data
    return _WeightArrays(int(weights.format), rows, columns, values, scales, minimums)


def _check(status: int, what: str) -> None:
    if status == 2:
        raise MemoryError(f"{what}: out of memory")
    if status:
        raise ValueError(f"{what}: {_FAULTS.get(status, f'status {status}')}")
