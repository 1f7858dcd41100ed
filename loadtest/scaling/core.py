"""What one core of Redis carries, by how many sequences each worker runs: an emit is a worker's step.

The emits are those of the protocol benchmark (loadtest/protocol), at more widths. What a request costs beside its
tokens is read from that benchmark's newest results.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import orjson

from loadtest.protocol.emitting import measure_emit
from loadtest.protocol.rig import rig
from loadtest.results import RESULTS

WIDTHS = (1, 8, 32, 128, 256)
TENANTS = 4
STEP_MS = 20.0


@dataclass(frozen=True, slots=True)
class CoreRow:
    """`emits_per_s`, `tokens_per_s`: through one core of the server with nothing else on it. `workers`: how many that
    are, with a step each STEP_MS."""

    width: int
    script_us: float
    cpu_us: float
    emits_per_s: float
    tokens_per_s: float
    workers: float


async def measure_core(folder: Path, *, tokens: int, rounds: int) -> list[CoreRow]:
    rows: list[CoreRow] = []
    async with rig(folder) as bench:
        for width in WIDTHS:
            number = max(200, tokens // 4) if width == 1 else tokens
            row = await measure_emit(bench, width, min(width, TENANTS), tokens=number, rounds=rounds)
            emits = row.tokens_per_s / width
            rows.append(
                CoreRow(width, row.script_us, row.cpu_us, emits, row.tokens_per_s, emits * STEP_MS / 1000)
            )  # fmt: skip
    return rows


def request_us() -> dict[str, float]:
    """CPU microseconds of the server that a request costs beside its tokens: admitted and taken, from the newest
    `protocol.json` at 10,000 waiting in one flow."""
    told = orjson.loads((RESULTS / "protocol.json").read_bytes())
    (row,) = [row for row in told["waiting"] if (row["num_waiting"], row["num_flows"]) == (10_000, 1)]
    return {"admit": row["admit_cpu_us"], "take": row["take_cpu_us"]}
