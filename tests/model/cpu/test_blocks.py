"""Stored blocks are read as the `gguf` package reads them; what is quantized anew is close."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType, dequantize, quantize

from worker.model.cpu import blocks
from worker.model.cpu.blocks import Format, from_stored

ROWS, COLUMNS = 6, 512


def some_weights(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((ROWS, COLUMNS)).astype(np.float32) * 0.05


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q8_0"])
def test_a_stored_block_keeps_its_exact_values(name: str) -> None:
    kind = GGMLQuantizationType[name]
    data = quantize(some_weights(), kind)
    read = from_stored(name, data, COLUMNS)
    assert read is not None
    np.testing.assert_array_equal(read.dequantize(), dequantize(data, kind))


def test_q4_k_keeps_its_values_but_for_rounded_scales() -> None:
    generator = np.random.default_rng(1)
    data = generator.integers(0, 256, (ROWS, COLUMNS // 256 * 144), np.uint8)
    outer = data.reshape(ROWS, -1, 144)
    outer[..., :4] = generator.uniform(1e-4, 1e-3, (*outer.shape[:2], 2)).astype(np.float16).view(np.uint8)
    read = from_stored("Q4_K", data, COLUMNS)
    assert read is not None and read.format is Format.NIBBLES_MIN
    expected = dequantize(data, GGMLQuantizationType.Q4_K)
    largest = np.abs(expected).reshape(ROWS, -1, 32).max(-1).repeat(32, -1)
    assert (np.abs(read.dequantize() - expected) <= 1.5e-3 * largest + 1e-6).all()


def test_other_types_have_no_reading() -> None:
    assert from_stored("Q6_K", np.zeros((1, 210), np.uint8), 256) is None


def test_quantizing_is_within_half_a_step() -> None:
    weights = some_weights(2)
    read = blocks.quantize(weights)
    step = read.scales.astype(np.float32).repeat(32, -1)
    assert (np.abs(read.dequantize() - weights) <= step * 0.51).all()


def test_columns_are_filled_up_with_zeros() -> None:
    read = blocks.quantize(np.ones((2, 40), np.float32))
    assert read.shape == (2, 64)
    assert read.dequantize()[:, 40:].tolist() == [[0.0] * 24] * 2


def test_rows_are_taken_in_order_and_zeros_put_between() -> None:
    for data in (
        quantize(some_weights(), GGMLQuantizationType.Q4_1),
        quantize(some_weights(), GGMLQuantizationType.Q4_0),
    ):
        read = from_stored("Q4_1" if data.shape[1] == COLUMNS // 32 * 20 else "Q4_0", data, COLUMNS)
        assert read is not None
        taken = read.take_rows(np.array([3, -1, 0])).dequantize()
        whole = read.dequantize()
        assert taken[1].any() == 0 and np.array_equal(taken[[0, 2]], whole[[3, 0]])
