"""What a client got against what it must get: tokens lost, doubled, out of order. Pure; counts words, a token each.

Of the words that an alignment finds missing and those it finds too many, the same word in both moved; the rest of the
missing is lost, the rest of the surplus doubled (or foreign, which is no better).
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from dataclasses import dataclass

_WORD = re.compile(r"\s*[^\s.]+|\s*\.|\s+")


@dataclass(frozen=True, slots=True)
class Damage:
    lost: int = 0
    doubled: int = 0
    out_of_order: int = 0

    def __bool__(self) -> bool:
        return bool(self.lost or self.doubled or self.out_of_order)

    def __add__(self, other: Damage) -> Damage:
        return Damage(
            self.lost + other.lost, self.doubled + other.doubled, self.out_of_order + other.out_of_order
        )  # fmt: skip


def num_words(text: str) -> int:
    return len(_WORD.findall(text))


def compare(expected: str, got: str, *, is_whole: bool) -> Damage:
    """`is_whole`: the answer ended as it should. Otherwise what had not come yet is not lost."""
    if got == expected or (not is_whole and expected.startswith(got)):
        return Damage()
    wanted, words = _WORD.findall(expected), _WORD.findall(got)
    if not is_whole:
        wanted = wanted[: len(words)]
    missing: Counter[str] = Counter()
    surplus: Counter[str] = Counter()
    for kind, a, b, c, d in difflib.SequenceMatcher(None, wanted, words, autojunk=False).get_opcodes():
        if kind != "equal":
            missing.update(wanted[a:b])
            surplus.update(words[c:d])
    moved = (missing & surplus).total()
    damage = Damage(missing.total() - moved, surplus.total() - moved, moved)
    # Bytes differ and yet no word does: that is damage all the same.
    return damage or Damage(out_of_order=1)
