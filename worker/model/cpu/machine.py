"""What this machine's processor offers: the best of the instruction sets the kernels know, and its cores.

A kernel library is compiled for one instruction set, by flags that name it: what was built on one machine runs on
any that has the set. Which one this machine has is read from what the system says of the processor, never tried.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_CORES = Path("/sys/devices/system/cpu")
_X86 = ("x86_64", "AMD64")


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """`needs`: the system's names of what a processor must have. `flags`: the compiler's."""

    name: str
    needs: frozenset[str]
    flags: tuple[str, ...]


_AVX2_FLAGS = ("-mavx2", "-mfma", "-mf16c")
_AVX512_FLAGS = (*_AVX2_FLAGS, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni")
# Best first. The last one needs nothing and runs on every processor.
INSTRUCTION_SETS = (
    InstructionSet(
        "avx512vnni",
        frozenset(("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni")),
        _AVX512_FLAGS,
    ),
    InstructionSet("avx2", frozenset(("avx2", "fma", "f16c")), _AVX2_FLAGS),
    InstructionSet("portable", frozenset(), ()),
)


def available_sets() -> list[InstructionSet]:
    """Those this machine can run, best first."""
    features = processor_features()
    return [candidate for candidate in INSTRUCTION_SETS if candidate.needs <= features]


def compilable_sets() -> list[InstructionSet]:
    """Those a compiler of this machine can compile for."""
    return [candidate for candidate in INSTRUCTION_SETS if not candidate.needs or platform.machine() in _X86]


def processor_features() -> frozenset[str]:
    """As Linux names them; empty where it does not say, and on anything but x86."""
    if platform.machine() not in _X86 or not _CPUINFO.is_file():
        return frozenset()
    lines = _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    stated = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(stated.partition(":")[2].split())


def physical_cores() -> int:
    """Cores this process may use, each counted once however many threads it runs."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    siblings = {_siblings(number) for number in usable}
    return max(1, len(siblings))


def _siblings(number: int) -> str:
    """Names the core that processor `number` is a thread of."""
    file = _CORES / f"cpu{number}" / "topology" / "thread_siblings_list"
    return file.read_text(encoding="ascii").strip() if file.is_file() else str(number)
