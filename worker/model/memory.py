"""How much memory can still be had on a device: what the KV cache is sized by.

On a CPU that is the least of what the system has available and of what each control group that the process is in, up
to the root, still allows: a container's limit is one of those. Pages of files that nobody has touched lately can be had
again, so they count as free. Knows Linux; elsewhere a CPU's memory is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_UNLIMITED = 1 << 60  # what version 1 says where there is no limit is a little less than 2 ** 63


class FreeMemory(NamedTuple):
    """`limit` says whose it is, in words."""

    num_bytes: int
    limit: str


def free_memory(device: str, root: Path = Path("/")) -> FreeMemory | None:
    """None: unknown. `root`: where /proc and /sys are, for tests."""
    if device.startswith("cuda"):
        return _of_gpu(device)
    found = [*_of_system(root), *_of_groups(root)]
    return min(found, default=None)


def _of_gpu(device: str) -> FreeMemory:
    import torch

    torch.cuda.empty_cache()  # what loading took and gave back
    return FreeMemory(torch.cuda.mem_get_info(torch.device(device))[0], "the GPU")


def _of_system(root: Path) -> Iterator[FreeMemory]:
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            yield FreeMemory(int(line.split()[1]) << 10, "the system")


def _of_groups(root: Path) -> Iterator[FreeMemory]:
    """Both versions: a system may have the memory controller in either."""
    mounted = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            for group in _up_from(mounted, path):
                limits = (_number(group / name) for name in ("memory.max", "memory.high"))
                yield from _below(limits, group / "memory.current", group / "memory.stat", "inactive_file")
        elif "memory" in controllers.split(","):
            for group in _up_from(mounted / "memory", path):
                limits = iter([_number(group / "memory.limit_in_bytes")])
                yield from _below(limits, group / "memory.usage_in_bytes", group / "memory.stat", "total_inactive_file")


def _up_from(mounted: Path, path: str) -> Iterator[Path]:
    """The group and all around it. In a container the path may be the host's, and the group is what is mounted."""
    parts = [part for part in path.split("/") if part]
    for count in range(len(parts), -1, -1):
        yield mounted.joinpath(*parts[:count])


def _below(limits: Iterator[int | None], usage: Path, stat: Path, inactive: str) -> Iterator[FreeMemory]:
    limit = min((limit for limit in limits if limit is not None and limit < _UNLIMITED), default=None)
    used = _number(usage)
    if limit is not None and used is not None:
        yield FreeMemory(max(0, limit - max(0, used - _entry(stat, inactive))), "the control group")


def _entry(stat: Path, name: str) -> int:
    for line in _text(stat).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    """None: no such file, or "max"."""
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
