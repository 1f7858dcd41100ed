"""The prompts: token ids of a text that is in the repository, different at each call unless they are to be shared."""

from __future__ import annotations

import itertools
from pathlib import Path

from shared.text.tokenizer import Tokenizer

TEXTS = ("docs/protocol.md", "docs/architecture.md", "docs/configuration.md", "docs/chaos.md", "docs/clients.md")
ROOT = Path(__file__).parents[2]
LONG, SHORT, SHARED = 512, 32, 461


class Prompts:
    """Each begins with a token of its own, so that no prefix cache helps where none is meant to."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        text = "\n".join((ROOT / name).read_text() for name in TEXTS)
        self._ids = tokenizer.encode(text)
        self._marks = itertools.cycle(range(1000, 40_000))

    def short(self, count: int) -> list[list[int]]:
        return [self._cut(97 * i, SHORT) for i in range(count)]

    def long(self, count: int) -> list[list[int]]:
        return self.cut(count, LONG)

    def cut(self, count: int, length: int) -> list[list[int]]:
        return [self._cut(311 * i, length) for i in range(count)]

    def shared(self, count: int) -> list[list[int]]:
        """The first 90% in common, from call to call too."""
        start = self._ids[1000 : 1000 + SHARED]
        return [start + self._cut(211 * i, LONG - SHARED) for i in range(count)]

    def text(self, length: int = 256) -> list[int]:
        """Whose perplexity is asked; the same at each call."""
        return self._ids[2000 : 2000 + length]

    def prefixes(self, count: int = 100, length: int = 64) -> list[list[int]]:
        """The same at each call."""
        return [self._ids[89 * i % 15_000 :][:length] for i in range(count)]

    def _cut(self, offset: int, length: int) -> list[int]:
        start = offset % (len(self._ids) - length)
        return [next(self._marks), *self._ids[start + 1 : start + length]]
