"""Which cores the workers of one machine get: each its own, threads of one core together, within what is allowed.

Allowed is what the scheduler lets this process run on, and no more of it than the quota of its control groups pays for.
"""

from __future__ import annotations

import math
from pathlib import Path

from shared.config import usable_cpus


def deal(workers: int, root: Path = Path("/")) -> list[str]:
    """A HEADRACE_CPU_SET for each worker. Where there are fewer cores than workers, some share one."""
    cores = _by_core(usable_cpus(), root)
    quota = cpu_quota(root)
    cores = cores[: max(1, math.floor(quota))] if quota else cores
    if workers >= len(cores):
        return [str(cores[number % len(cores)]) for number in range(workers)]
    each, more = divmod(len(cores), workers)
    shares: list[str] = []
    for number in range(workers):
        mine, cores = cores[: each + (number < more)], cores[each + (number < more) :]
        shares.append(",".join(map(str, sorted(mine))))
    return shares


def usable(root: Path = Path("/")) -> float:
    """How many cores' worth of time this process may have."""
    return min(float(len(usable_cpus())), cpu_quota(root) or math.inf)


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Cores' worth of time that the control groups allow; None: no limit. Both versions of them."""
    found = [_quota_of(_text(root / "sys/fs/cgroup/cpu.max").split())]
    old = root / "sys/fs/cgroup/cpu"
    found.append(_quota_of([_text(old / "cpu.cfs_quota_us").strip(), _text(old / "cpu.cfs_period_us").strip()]))
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            parts = [part for part in path.split("/") if part]
            for count in range(1, len(parts) + 1):
                group = root.joinpath("sys/fs/cgroup", *parts[:count], "cpu.max")
                found.append(_quota_of(_text(group).split()))
    return min((quota for quota in found if quota), default=None)


def _quota_of(words: list[str]) -> float | None:
    if len(words) != 2 or not all(word.isdigit() for word in words) or not int(words[1]):
        return None
    return int(words[0]) / int(words[1])


def _by_core(cpus: frozenset[int], root: Path) -> list[int]:
    """Threads of one core side by side, so that two workers do not share a core."""

    def core_of(cpu: int) -> tuple[int, int]:
        listed = _text(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").strip()
        first = listed.replace("-", ",").split(",")[0]
        return (int(first) if first.isdigit() else cpu, cpu)

    return sorted(cpus, key=core_of)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
