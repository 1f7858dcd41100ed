"""Runs a client's own program, from the environment of the interpreter that runs the session."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

COMMAND_S = 240.0


class CommandFailed(Exception):
    """It ended otherwise than it was to; `stdout` is all of it, the words are the end of what it said."""

    def __init__(self, returncode: int, stdout: str, stderr: str) -> None:
        super().__init__(f"exit {returncode}: {(stdout + stderr)[-350:]}")
        self.stdout = stdout


def run_command(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    is_to_fail: bool = False,
    folder: Path | None = None,
) -> str:
    """Its stdout, or, where it is to fail, what it said on either. `folder` is where its programs lie.

    Variables of `env` are put beside this process's. Raises CommandFailed.
    """
    beside = folder or Path(sys.executable).parent
    words = [f"{name}={value}" for name, value in (env or {}).items()]
    done = subprocess.run(
        ["env", *words, str(beside / command[0]), *command[1:]], stdin=subprocess.DEVNULL, capture_output=True,
        text=True, check=False, timeout=COMMAND_S,
    )  # fmt: skip
    if (done.returncode != 0) != is_to_fail:
        raise CommandFailed(done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr if is_to_fail else done.stdout
