"""An environment of its own for each client: a virtual environment by uv, or a folder by npm.

They are kept in a cache folder under their contents' names, and made anew when these change. Packages come from the
registries that uv and npm are set up for. Nothing is installed into this project's own environment.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

INSTALL_S = 600.0
MIN_NODE = 20


class CannotInstall(Exception):
    """Why a client cannot be run here, in words."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What is installed, and the program that runs a session in it."""

    folder: Path
    interpreter: str


def python_environment(cache: Path, packages: tuple[str, ...]) -> Environment:
    """Raises CannotInstall with the installer's words."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin") or shutil.which("uv")
    if uv is None:
        raise CannotInstall("uv is not installed")
    folder = _folder(cache, packages)
    interpreter = folder / "bin" / "python"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        _install([uv, "venv", "--quiet", "--python", sys.executable, str(folder)], cache)
        _install([uv, "pip", "install", "--quiet", "--python", str(interpreter), *packages], cache)
        (folder / "complete").touch()
    return Environment(folder, str(interpreter))


def node_environment(cache: Path, packages: tuple[str, ...]) -> Environment:
    """Raises CannotInstall, also where there is no node and npm, or an old one."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise CannotInstall("node and npm are not installed")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").split(".")[0]) < MIN_NODE:
        raise CannotInstall(f"node is {version}, {MIN_NODE} or newer is needed")
    folder = _folder(cache, packages)
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "package.json").write_text(json.dumps({"private": True, "type": "module"}))
        _install([npm, "install", "--silent", "--no-audit", "--no-fund", *packages], folder)
        (folder / "complete").touch()
    return Environment(folder, node)


def _folder(cache: Path, packages: tuple[str, ...]) -> Path:
    """One a set of packages: its name changes with it."""
    name = "-".join(re.findall(r"[a-z0-9.]+", packages[0]))
    cache.mkdir(parents=True, exist_ok=True)
    return cache / f"{name}-{hashlib.sha256(repr(packages).encode()).hexdigest()[:8]}"


def _install(command: list[str], directory: Path) -> None:
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=INSTALL_S)
    except subprocess.TimeoutExpired as error:
        raise CannotInstall(f"not installed within {INSTALL_S:.0f} s") from error
    if done.returncode != 0:
        raise CannotInstall(" ".join((done.stderr or done.stdout).split())[-300:])
