"""The products of the kernels: right, alike on every instruction set, and the same bits however rows are batched."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quantize

from tests.model.cpu.conftest import SETS
from worker.model.cpu import blocks
from worker.model.cpu.blocks import BlockMatrix, from_stored
from worker.model.cpu.library import Library

pytestmark = pytest.mark.timeout(300)  # the first of them compiles
Open = Callable[[str], Library]
FORMATS = ["Q4_1", "Q4_0", "Q8_0"]
FUSED = [name for name in SETS if name != "portable"]


def some_weights(name: str, rows: int, columns: int) -> BlockMatrix:
    values = np.random.default_rng(columns).standard_normal((rows, columns)).astype(np.float32)
    read = from_stored(name, quantize(values, GGMLQuantizationType[name]), columns)
    assert read is not None
    return read


def some_inputs(rows: int, columns: int) -> np.ndarray:
    inputs = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
    inputs[0, :32] = 0  # a block with nothing in it
    return inputs


@pytest.mark.parametrize("instructions", SETS)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("columns", [32, 96, 576])
def test_products_are_those_of_the_quantized_values(library: Open, instructions: str, name: str, columns: int) -> None:
    weights, inputs = some_weights(name, 50, columns), some_inputs(27, columns)
    rounded = blocks.quantize(inputs).dequantize()  # the same rounding, but for its scale in half precision
    expected = rounded.astype(np.float64) @ weights.dequantize().T.astype(np.float64)
    made = library(instructions).multiply(weights, inputs)
    assert np.abs(made - expected).max() < 0.02 * np.abs(expected).max()


@pytest.mark.parametrize("instructions", SETS)
def test_whole_numbers_are_multiplied_exactly(library: Open, instructions: str) -> None:
    """Activations whose largest is 127 have the scale 1, and so no rounding at all."""
    generator = np.random.default_rng(3)
    inputs = generator.integers(-126, 127, (14, 64)).astype(np.float32)
    inputs[:, ::32] = 127
    values = generator.integers(-127, 128, (33, 64)).astype(np.int8)
    values[0] = -128  # no quantizer makes it, a file may hold it
    weights = BlockMatrix(blocks.Format.BYTES, values.view(np.uint8), np.ones((33, 2), np.float16))
    expected = inputs.astype(np.int64) @ values.T.astype(np.int64)
    assert library(instructions).multiply(weights, inputs).tolist() == expected.tolist()


@pytest.mark.parametrize("instructions", SETS)
@pytest.mark.parametrize("name", FORMATS)
def test_a_row_has_the_same_bits_in_any_company(library: Open, instructions: str, name: str) -> None:
    weights, inputs = some_weights(name, 40, 160), some_inputs(40, 160)
    kernels = library(instructions)
    alone = [kernels.multiply(weights, row[None]).tobytes() for row in inputs]
    for count in (2, 3, 7, 12, 13, 25, 40):
        made = kernels.multiply(weights, inputs[:count])
        assert [row.tobytes() for row in made] == alone[:count]


@pytest.mark.skipif(len(FUSED) < 2, reason="one instruction set with fused multiply-add")
@pytest.mark.parametrize("name", FORMATS)
def test_instruction_sets_agree_to_the_last_bit(library: Open, name: str) -> None:
    weights, inputs = some_weights(name, 50, 576), some_inputs(27, 576)
    made = {library(instructions).multiply(weights, inputs).tobytes() for instructions in FUSED}
    assert len(made) == 1


def test_the_portable_kernels_are_close(library: Open) -> None:
    weights, inputs = some_weights("Q4_1", 50, 576), some_inputs(27, 576)
    best, portable = (library(name).multiply(weights, inputs) for name in (SETS[0], "portable"))
    np.testing.assert_allclose(portable, best, rtol=1e-4, atol=1e-4)
