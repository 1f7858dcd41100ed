"""Sizes: files, functions, the five hearts, packages. Each exception has its reason beside it, in one table."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.architecture.source_tree import PACKAGES, ROOT, files, functions, python_files, read

MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 60
MAX_HEART_LINES = 40
MODULES_PER_PACKAGE = range(3, 14)

# The functions the project exists for (docs/architecture.md). They have no exceptions. None: all in the file.
HEARTS: dict[str, str | None] = {
    "worker/engine/scheduling/scheduler.py": "Scheduler.schedule",
    "worker/engine/engine.py": "EngineCore.step",
    "worker/consumer.py": None,
    "gateway/dispatch.py": "Dispatcher.follow",
    "gateway/openai/chunks.py": None,
}

# What is over (or under) a gate, and why that is better than splitting (or padding) it.
EXCEPTIONS: dict[str, str] = {}


def over_file_gate() -> list[str]:
    sizes = {path.as_posix(): read(path).count("\n") for path in (*python_files(), *python_files("tests"))}
    sizes |= {path.as_posix(): read(path).count("\n") for path in files() if path.suffix == ".lua"}
    return [f"file {path}" for path, num_lines in sizes.items() if num_lines > MAX_FILE_LINES]


def over_function_gate() -> list[str]:
    return [f"function {found.path}:{found.name}" for found in functions() if found.num_lines > MAX_FUNCTION_LINES]


def outside_package_gate() -> list[str]:
    folders = {path.parent.as_posix() for path in python_files()}
    modules = Counter(path.parent.as_posix() for path in python_files() if path.name != "__init__.py")
    return [f"package {folder}" for folder in folders if modules[folder] not in MODULES_PER_PACKAGE]


def test_nothing_is_outside_the_gates_but_the_named_exceptions() -> None:
    outside = {*over_file_gate(), *over_function_gate(), *outside_package_gate()}
    assert outside - set(EXCEPTIONS) == set()


def test_no_exception_has_outlived_its_need() -> None:
    outside = {*over_file_gate(), *over_function_gate(), *outside_package_gate()}
    assert set(EXCEPTIONS) - outside == set()


@pytest.mark.parametrize("path", HEARTS)
def test_a_heart_stays_small(path: str) -> None:
    if not (ROOT / path).exists():
        pytest.skip(f"{path} is not built yet")
    wanted = HEARTS[path]
    hearts = [found for found in functions() if found.path == path and wanted in (None, found.name)]
    assert hearts, f"{wanted} is not in {path}: was the heart renamed?"
    assert [found for found in hearts if found.num_lines > MAX_HEART_LINES] == []


def test_no_exception_is_for_a_heart() -> None:
    assert not [name for name in EXCEPTIONS for path in HEARTS if name.startswith(f"function {path}:")]


def test_every_folder_of_code_is_a_package() -> None:
    lacking = {path.parent for path in python_files() if not (ROOT / path.parent / "__init__.py").exists()}
    assert lacking == set()
    assert all((ROOT / Path(package) / "__init__.py").exists() for package in PACKAGES)
