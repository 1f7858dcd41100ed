"""What is free, from files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.model.memory import FreeMemory, free_memory

MIB = 1 << 20
MEMINFO = "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:    8192000 kB\n"
SYSTEM = FreeMemory(8000 * MIB, "the system")


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def group(path: str, limit: str, used: int, inactive: int = 0) -> dict[str, str]:
    folder = f"sys/fs/cgroup{path}"
    stat = f"anon 1\ninactive_file {inactive}\nactive_file 5\n"
    return {f"{folder}/memory.max": limit, f"{folder}/memory.current": f"{used}\n", f"{folder}/memory.stat": stat}


def test_without_limits_it_is_what_the_system_has_available(tmp_path: Path) -> None:
    assert free_memory("cpu", write(tmp_path, {"proc/self/cgroup": "0::/a\n"} | group("/a", "max\n", 5))) == SYSTEM


@pytest.mark.parametrize("path", ["/a", "/a/b", "/a/b/c"])
def test_the_tightest_of_the_groups_around_it_counts(tmp_path: Path, path: str) -> None:
    """Pages of files that can be dropped are free. A group that is not there is passed over."""
    files = group("/a", f"{1000 * MIB}\n", 700 * MIB, 100 * MIB) | group("/a/b", "max", MIB)
    files["proc/self/cgroup"] = f"0::{path}\n"
    assert free_memory("cpu", write(tmp_path, files)) == FreeMemory(400 * MIB, "the control group")


def test_a_soft_limit_counts_too(tmp_path: Path) -> None:
    files = group("/", "max", 100 * MIB) | {"sys/fs/cgroup/memory.high": f"{300 * MIB}", "proc/self/cgroup": "0::/\n"}
    assert free_memory("cpu", write(tmp_path, files)) == FreeMemory(200 * MIB, "the control group")


def test_more_used_than_allowed_is_nothing_free(tmp_path: Path) -> None:
    files = group("/", f"{MIB}", 2 * MIB) | {"proc/self/cgroup": "0::/\n"}
    assert free_memory("cpu", write(tmp_path, files)) == FreeMemory(0, "the control group")


@pytest.mark.parametrize(("limit", "free"), [("9223372036854771712", SYSTEM), (f"{500 * MIB}", None)])
def test_limits_of_version_one(tmp_path: Path, limit: str, free: FreeMemory | None) -> None:
    folder = "sys/fs/cgroup/memory/docker/x"
    files = {
        "proc/self/cgroup": "5:cpu,cpuacct:/y\n4:memory:/docker/x\n0::/\n",
        f"{folder}/memory.limit_in_bytes": limit,
        f"{folder}/memory.usage_in_bytes": f"{200 * MIB}",
        f"{folder}/memory.stat": f"inactive_file 3\ntotal_inactive_file {50 * MIB}\n",
    }
    assert free_memory("cpu", write(tmp_path, files)) == (free or FreeMemory(350 * MIB, "the control group"))


def test_elsewhere_it_is_unknown(tmp_path: Path) -> None:
    assert free_memory("cpu", tmp_path) is None
