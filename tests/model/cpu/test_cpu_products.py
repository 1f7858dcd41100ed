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
@pytest.mark.parametrize(("columns", "terms"), [(32, 1), (96, 2), (576, 1), (576, 2)])
def test_products_are_those_of_the_quantized_values(
    library: Open, instructions: str, name: str, columns: int, terms: int
) -> None:
    weights, inputs = some_weights(name, 50, columns), some_inputs(27, columns)
    expected = inputs.astype(np.float64) @ weights.dequantize().T.astype(np.float64)
    made = library(instructions).multiply(weights, inputs, terms)
    assert np.abs(made - expected).max() < (0.02 if terms == 1 else 1e-4) * np.abs(expected).max()


@pytest.mark.parametrize("instructions", SETS)
@pytest.mark.parametrize("terms", [1, 2])
def test_whole_numbers_are_multiplied_exactly(library: Open, instructions: str, terms: int) -> None:
    """Activations whose largest is 127, or 127 * 256, have the scale 1, and so no rounding at all."""
    generator = np.random.default_rng(3)
    limit = 127 * (256 if terms == 2 else 1)
    inputs = generator.integers(-limit, limit, (14, 64))
    inputs -= (inputs % 256 == 128) * (terms - 1)  # 128 is the one remainder that is not held
    inputs[:, ::32] = limit
    values = generator.integers(-127, 128, (33, 64)).astype(np.int8)
    values[0] = -128  # no quantizer makes it, a file may hold it
    weights = BlockMatrix(blocks.Format.BYTES, values.view(np.uint8), np.ones((33, 2), np.float16))
    expected = inputs @ values.T.astype(np.int64)
    made = library(instructions).multiply(weights, inputs.astype(np.float32), terms)
    assert np.abs(made - expected).max() <= (0 if terms == 1 else 16)  # sums above 2^24 are rounded to floats


@pytest.mark.parametrize("instructions", SETS)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("terms", [1, 2])
def test_a_row_has_the_same_bits_in_any_company(library: Open, instructions: str, name: str, terms: int) -> None:
    weights, inputs = some_weights(name, 40, 160), some_inputs(40, 160)
    kernels = library(instructions)
    alone = [kernels.multiply(weights, row[None], terms).tobytes() for row in inputs]
    for count in (2, 3, 7, 12, 13, 25, 40):
        made = kernels.multiply(weights, inputs[:count], terms)
        assert [row.tobytes() for row in made] == alone[:count]


@pytest.mark.skipif(len(FUSED) < 2, reason="one instruction set with fused multiply-add")
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("terms", [1, 2])
def test_instruction_sets_agree_to_the_last_bit(library: Open, name: str, terms: int) -> None:
    weights, inputs = some_weights(name, 50, 576), some_inputs(270, 576)
    made = {library(instructions).multiply(weights, inputs, terms).tobytes() for instructions in FUSED}
    assert len(made) == 1


@pytest.mark.parametrize("terms", [1, 2])
def test_the_portable_kernels_are_close(library: Open, terms: int) -> None:
    weights, inputs = some_weights("Q4_1", 50, 576), some_inputs(27, 576)
    best, portable = (library(name).multiply(weights, inputs, terms) for name in (SETS[0], "portable"))
    np.testing.assert_allclose(portable, best, rtol=1e-4, atol=1e-4)
