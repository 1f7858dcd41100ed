"""What the launcher prints: plain lines, flushed at once, so that they read well in a terminal, a file and a pipe."""

from __future__ import annotations

import contextlib
import sys


def say(line: str) -> None:
    write(line + "\n")


def write(text: str) -> None:
    """To whoever watches. A reader that went away must not stop the service."""
    with contextlib.suppress(BrokenPipeError, ValueError):
        sys.stdout.write(text)
        sys.stdout.flush()
