"""Fixtures of the tests of the CPU kernels. Without a compiler those that need one are not collected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.model.cpu.kernel_cache import kernel_cache, open_library
from worker.model.cpu.build import find_compiler
from worker.model.cpu.choice import KernelConfig
from worker.model.cpu.library import Library
from worker.model.cpu.machine import available_sets

if find_compiler() is None:
    collect_ignore_glob = ["test_cpu_*.py"]

SETS = [instructions.name for instructions in available_sets()]


@pytest.fixture(scope="session")
def library(request: pytest.FixtureRequest) -> Callable[[str], Library]:
    """The kernels for one instruction set of this machine."""
    return lambda instructions: open_library(kernel_cache(request.config), instructions)


@pytest.fixture(scope="session")
def kernels(request: pytest.FixtureRequest) -> Callable[..., KernelConfig]:
    def config(**changes: Any) -> KernelConfig:
        settings: dict[str, Any] = {
            "mode": "native",
            "activations": "int16",
            "library_cache": str(kernel_cache(request.config)),
        }
        return KernelConfig(**settings | changes)

    return config
