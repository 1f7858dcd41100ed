"""Compiles the kernels with the machine's own C++ compiler, once, into a cache.

    <cache>/headrace-<instruction set>-<sources and flags>-<compiler>.so

A file's name says all that went into it, so nothing in the cache is ever stale; a file is written under another
name and moved into place, so that workers which start together cannot see half of one. Where there is no compiler
(a container image), a library that another one built from these sources will do:
`python -m worker.model.cpu.build FOLDER` builds one for every instruction set.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from worker.model.cpu.machine import InstructionSet, compilable_sets

SOURCES = Path(__file__).parent / "kernels"
COMPILERS = ("c++", "g++", "clang++")
_FLAGS = (
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",  # a sum is fused where the source says so, or bits would depend on the compiler
    "-fno-math-errno",
    "-fPIC",
    "-fvisibility=hidden",
    "-pthread",
)
_TIMEOUT_S = 300


class BuildError(Exception):
    """There is no library and none can be made; the message says why."""


def find_library(instructions: InstructionSet, cache: Path, compiler: str = "") -> Path:
    """The library for an instruction set: from the cache, or compiled now (seconds). Raises BuildError.

    `compiler` '' is the first of c++, g++ and clang++ that there is.
    """
    stem = f"headrace-{instructions.name}-{_digest_of_sources(instructions)}"
    found = find_compiler(compiler)
    if found is None:
        built = sorted(cache.glob(f"{stem}-*.so"))
        if built:
            return built[0]
        raise BuildError(f"no C++ compiler ({compiler or ', '.join(COMPILERS)}) and nothing built in {cache}")
    library = cache / f"{stem}-{_digest_of_compiler(found)}.so"
    if not library.is_file():
        _compile(found, instructions, library)
    return library


def find_compiler(compiler: str = "") -> str | None:
    """Its path."""
    candidates = (shutil.which(name) for name in ((compiler,) if compiler else COMPILERS))
    return next((path for path in candidates if path is not None), None)


def _digest_of_sources(instructions: InstructionSet) -> str:
    digest = hashlib.blake2b(" ".join((*_FLAGS, *instructions.flags)).encode(), digest_size=6)
    for path in sorted(SOURCES.glob("*.[ch]*")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _digest_of_compiler(compiler: str) -> str:
    version = _run([compiler, "--version"]).splitlines()[:1]
    return hashlib.blake2b(" ".join(version).encode(), digest_size=4).hexdigest()


def _compile(compiler: str, instructions: InstructionSet, library: Path) -> None:
    """Files side by side, then linked."""
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix="building-", dir=library.parent) as folder,
            ThreadPoolExecutor() as pool,
        ):
            sources = sorted(SOURCES.glob("*.cpp"))
            objects = [Path(folder) / f"{source.stem}.o" for source in sources]
            flags = [compiler, *_FLAGS, *instructions.flags]
            commands = (
                [*flags, "-c", str(source), "-o", str(made)] for source, made in zip(sources, objects, strict=True)
            )
            list(pool.map(_run, commands))
            linked = Path(folder) / library.name
            _run([*flags, "-shared", *map(str, objects), "-o", str(linked)])
            os.replace(linked, library)
    except OSError as error:
        raise BuildError(f"the kernels cannot be stored in {library.parent}: {error}") from error


def _run(command: list[str]) -> str:
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]} cannot be run: {error}") from error
    if result.returncode:
        said = (result.stderr or result.stdout).strip().splitlines()
        first = next((line for line in said if "error" in line), said[0] if said else "it says nothing")
        raise BuildError(f"{command[0]} fails: {first}")
    return result.stdout


def main() -> None:
    """For images: every library this kind of processor may want, into the folder named."""
    folder = Path(sys.argv[1])
    for instructions in compilable_sets():
        print(find_library(instructions, folder))


if __name__ == "__main__":
    main()
