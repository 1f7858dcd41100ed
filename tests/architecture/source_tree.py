"""What the gates look at: the files git has or would take, and the code in them."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGES = ("shared", "gateway", "worker", "deploy", "loadtest")


@cache
def files() -> tuple[Path, ...]:
    """Tracked files, and new ones that .gitignore does not exclude, relative to the root."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return tuple(sorted(Path(name) for name in listed if name and (ROOT / name).is_file()))


def python_files(*tops: str) -> list[Path]:
    return [path for path in files() if path.suffix == ".py" and path.parts[0] in (tops or PACKAGES)]


def read(path: Path | str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


class Function(NamedTuple):
    """`name` is qualified: `Scheduler.schedule`. `num_lines` is from `def` to the end, docstring included."""

    path: str
    name: str
    num_lines: int


@cache
def functions() -> tuple[Function, ...]:
    found: list[Function] = []
    for path in python_files():
        found += [
            Function(path.as_posix(), name, num_lines) for name, num_lines in _functions(ast.parse(read(path)), "")
        ]
    return tuple(found)


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
    for child in ast.iter_child_nodes(node):
        inner = prefix
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            inner = f"{prefix}{child.name}."
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{child.name}", (child.end_lineno or child.lineno) - child.lineno + 1
        yield from _functions(child, inner)
