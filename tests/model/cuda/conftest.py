"""Triton's kernels run in its interpreter here, on a CPU; without Triton those tests are skipped, and say so."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

import pytest

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]


def _has_gpu() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


HAS_GPU = _has_gpu()
if not HAS_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when kernels are defined: before any import of theirs


@pytest.fixture(scope="session")
def triton() -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("TRITON KERNELS NOT TESTED: pip install triton (it needs no GPU: its interpreter runs them)")
    if HAS_GPU:
        pytest.skip("with a GPU the kernels are compiled for it: tests/gpu and `python -m loadtest gpu` run them")


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
