"""What came of a batch, held against what was asked: every line once, each answer whole, each run once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Books:
    """`missing`, `doubled`: lines without an answer, and with more than one. `cut`: answers shorter than asked."""

    lines: int
    completed: int
    failed: int
    missing: int
    doubled: int
    cut: int
    prompt_tokens: int
    completion_tokens: int

    @property
    def is_sound(self) -> bool:
        return self.completed == self.lines and not (self.failed or self.missing or self.doubled or self.cut)


def books_of(
    number: int, max_tokens: int, output: Sequence[Mapping[str, Any]], errors: Sequence[Mapping[str, Any]]
) -> Books:
    """Of a batch of lines `line-0` to `line-<number - 1>`."""
    seen = Counter(str(answer["custom_id"]) for answer in [*output, *errors])
    usages = [answer["response"]["body"]["usage"] for answer in output]
    return Books(
        lines=number,
        completed=len(output),
        failed=len(errors),
        missing=sum(f"line-{i}" not in seen for i in range(number)),
        doubled=sum(times > 1 for times in seen.values()),
        cut=sum(usage["completion_tokens"] != max_tokens for usage in usages),
        prompt_tokens=sum(usage["prompt_tokens"] for usage in usages),
        completion_tokens=sum(usage["completion_tokens"] for usage in usages),
    )
