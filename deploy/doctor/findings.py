"""A finding of `headrace doctor`: one check, its verdict, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "FAIL"]


@dataclass(frozen=True)
class Finding:
    level: Level
    check: str
    detail: str
    remedy: str = ""

    def line(self) -> str:
        remedy = f" -> {self.remedy}" if self.remedy else ""
        return f"{self.level:<5} {self.check}: {self.detail}{remedy}"


def ok(check: str, detail: str) -> Finding:
    return Finding("ok", check, detail)


def warn(check: str, detail: str, remedy: str) -> Finding:
    return Finding("warn", check, detail, remedy)


def fail(check: str, detail: str, remedy: str) -> Finding:
    return Finding("FAIL", check, detail, remedy)
