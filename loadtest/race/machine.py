"""What this machine can do at most: the rate at which its cores read memory."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

import numpy as np


def read_bandwidth_gb_s(threads: int, num_bytes: int = 1 << 29) -> float:
    """Best of several sums over memory that no cache holds, by that many threads, each its part."""
    from concurrent.futures import ThreadPoolExecutor

    parts = np.array_split(np.ones(num_bytes // 8, np.int64), threads)
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(7):
            started = time.perf_counter()
            list(pool.map(np.sum, parts))
            best = max(best, num_bytes / (time.perf_counter() - started) / 1e9)
    return best


def describe() -> dict[str, object]:
    """What figures of this machine depend on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    told = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = [flag for flag in ("avx2", "avx512f", "avx512_vnni", "amx_int8") if flag in told.get("flags", "").split()]
    return {"cpu": told.get("model name", platform.processor()), "cores": os.cpu_count(), "flags": flags}
