"""What the commands print: plain lines, flushed at once, so that they read well in a terminal, a file and a pipe.

Refusals become one line on stderr and an exit code: 2 for a wrong setting, 1 for all else.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator

from shared.errors import ConfigurationError, HeadraceError


def say(line: str) -> None:
    write(line + "\n")


def write(text: str) -> None:
    """To whoever watches. A reader that went away must not stop the service."""
    with contextlib.suppress(BrokenPipeError, ValueError):
        sys.stdout.write(text)
        sys.stdout.flush()


@contextlib.contextmanager
def refusals() -> Generator[None]:
    """Turns our errors into a message on stderr and an exit code; lets all else through."""
    try:
        yield
    except HeadraceError as error:
        print(f"headrace: {error.message}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigurationError) else 1)
