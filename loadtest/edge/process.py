"""What a process has used: CPU time and memory, as the kernel counts them (Linux)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Used:
    """CPU seconds of a process and what it started, those of them in the kernel, and the memory it holds now."""

    cpu_s: float
    kernel_s: float
    rss_mb: float


def used_by(pid: int) -> Used:
    """Of the process and its living descendants. Raises FileNotFoundError when it is gone."""
    pids = [pid, *_descendants(pid)]
    times = [_times_s(each) for each in pids]
    kernel_s = sum(kernel for _, kernel in times)
    return Used(sum(user for user, _ in times) + kernel_s, kernel_s, sum(_rss_mb(each) for each in pids))


def _times_s(pid: int) -> tuple[float, float]:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) * _TICK_S, int(fields[12]) * _TICK_S


def _rss_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:")), 0.0)


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *_descendants(int(child))]
    return found
