"""Layers, names and habits that a machine can hold."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from tests.architecture.source_tree import ROOT, files, python_files, read

FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "misc", "tools_common"}

# os.environ is read in one place; the others pass it on to a child, whole, or to vLLM, which reads its own from there.
ENVIRONMENT = {"shared/config.py", "deploy/process.py", "loadtest/stack.py", "worker/backends/vllm_engine/core.py"}


def test_the_layers_hold() -> None:
    """The import contracts of pyproject.toml."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_no_module_is_a_drawer_for_odds_and_ends() -> None:
    named = {path.as_posix() for path in files() if {path.stem, *path.parent.parts} & FORBIDDEN_NAMES}
    assert named == set()


def test_init_files_are_empty() -> None:
    full = [path for path in python_files() if path.name == "__init__.py" and read(path).strip()]
    assert full == []


def test_every_module_says_what_lives_in_it() -> None:
    silent = [
        path.as_posix()
        for path in python_files()
        if path.name != "__init__.py" and ast.get_docstring(ast.parse(read(path))) is None
    ]
    assert silent == []


def test_settings_are_read_in_one_place() -> None:
    readers = {path.as_posix() for path in python_files() if "os.environ" in read(path) or "os.getenv" in read(path)}
    assert readers - ENVIRONMENT == set()


def test_types_are_strict_everywhere_but_in_models() -> None:
    lax = [path.as_posix() for path in python_files() if "# pyright: basic" in read(path)]
    assert [path for path in lax if not path.startswith("worker/model/")] == []
