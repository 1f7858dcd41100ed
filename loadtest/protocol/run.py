"""`python -m loadtest protocol` (`make bench-protocol`): the whole protocol benchmark, its table and its JSON."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import tempfile
from pathlib import Path

import typer

from loadtest.protocol.emitting import EmitRow, measure_emit
from loadtest.protocol.idle import BURST, IdleRow, measure_idle
from loadtest.protocol.lanes import LaneRow, measure_lanes
from loadtest.protocol.reaping import ReapRow, measure_reap
from loadtest.protocol.rig import Rig, rig
from loadtest.protocol.waiting import WaitingRow, measure_memory, measure_refusals, measure_waiting
from loadtest.results import write_results

RUNNING = ((1, 1), (32, 4), (256, 4), (256, 256))
CROWDS = ((100, 1), (100, 100), (10_000, 1), (10_000, 10_000), (1_000_000, 1), (1_000_000, 10_000))
PROMISES = (0, 1000, 19_000)
QUICK_CROWDS = ((100, 1), (100, 100), (10_000, 1), (10_000, 10_000))
TARGET_SCRIPT_US, TARGET_TOKENS_PER_S = 4.0, 200_000


async def _emits(bench: Rig, *, quick: bool) -> list[EmitRow]:
    typer.echo("emit, us of the server a token, beside PUBLISH of the same bytes (one a step, one a token):")
    typer.echo("  running tenants | script    cpu | floor: step  token | cpu/step cpu/token | tokens/s a core  spread")
    rows: list[EmitRow] = []
    for num_running, num_tenants in RUNNING:
        tokens = (2_000 if num_running == 1 else 12_000) // (4 if quick else 1)
        row = await measure_emit(bench, num_running, num_tenants, tokens=tokens, rounds=3 if quick else 7)
        rows.append(row)
        typer.echo(
            f"  {num_running:7d} {num_tenants:7d} | {row.script_us:6.2f} {row.cpu_us:6.2f} | "
            f"{row.floor_step_us:11.2f} {row.floor_token_us:6.2f} | {row.cpu_us / row.floor_step_us:8.1f} "
            f"{row.cpu_us / row.floor_token_us:9.2f} | {row.tokens_per_s:15,.0f}  {row.spread:5.2f}x"
        )
    wanted = rows[2]
    typer.echo(
        f"  target at 256: at most {TARGET_SCRIPT_US} us in the script: {wanted.script_us:.2f}; "
        f"{TARGET_TOKENS_PER_S:,} tokens/s through one core: {wanted.tokens_per_s:,.0f}"
    )
    return rows


async def _waiting(bench: Rig, *, quick: bool) -> list[WaitingRow]:
    typer.echo("admit and take, us of the server a request (one a call):")
    typer.echo("   waiting   flows |  admit    cpu |   take    cpu | memory MB")
    rows: list[WaitingRow] = []
    await bench.client.config_set("appendonly", "no")  # its file would hold a million requests several times over
    for num_waiting, num_flows in QUICK_CROWDS if quick else CROWDS:
        row = await measure_waiting(bench, num_waiting, num_flows, rounds=3 if quick else 9)
        rows.append(row)
        typer.echo(
            f"  {num_waiting:8d} {num_flows:7d} | {row.admit_us:6.1f} {row.admit_cpu_us:6.1f} | "
            f"{row.take_us:6.1f} {row.take_cpu_us:6.1f} | {row.memory_mb:9.0f}"
        )
    for name in ("admit_us", "admit_cpu_us", "take_us", "take_cpu_us"):
        figures = [getattr(row, name) for row in rows]
        typer.echo(f"  {name}: dearest over cheapest {max(figures) / min(figures):.2f} (to be at most 2)")
    return rows


async def _refusals(bench: Rig, *, quick: bool) -> dict[int, float]:
    costs = {number: await measure_refusals(bench, number, rounds=3 if quick else 9) for number in PROMISES}
    told = ", ".join(f"{cost:.1f} us after {number:,} promises" for number, cost in costs.items())
    typer.echo(f"admit that refuses and promises a time: {told}")
    return costs


async def _run(directory: Path, *, quick: bool) -> dict[str, object]:
    async with rig(directory) as bench:
        emits = await _emits(bench, quick=quick)
        memory = await measure_memory(bench, number=500 if quick else 2000)
        typer.echo(f"memory: {memory:.0f} bytes a waiting request with a body of 1,024 ({memory / 1024:.2f} times it)")
        row = await measure_idle(bench, 200 if quick else 1000, 50 if quick else 200)
        _tell_idle(row)
        reaped = await measure_reap(bench, 256, rounds=3 if quick else 9)
        _tell_reap(reaped)
        lanes = await measure_lanes(bench, rounds=3 if quick else 9)
        _tell_lanes(lanes)
        waiting = await _waiting(bench, quick=quick)
        refusals = await _refusals(bench, quick=quick)
    return {
        "emit": [dataclasses.asdict(row) for row in emits],
        "memory_bytes": memory,
        "idle": dataclasses.asdict(row),
        "reap": dataclasses.asdict(reaped),
        "lanes": dataclasses.asdict(lanes),
        "waiting": [dataclasses.asdict(row) for row in waiting],
        "refusal_us": {str(number): cost for number, cost in refusals.items()},
    }


def _tell_idle(row: IdleRow) -> None:
    typer.echo(
        f"idle: {row.num_workers} workers at their bells, {row.num_requests} requests one by one: {row.served} given "
        f"to exactly one; {row.rings_heard / row.num_requests:.2f} woken a request (most {row.most_woken}; of {BURST} "
        f"at once {row.burst_heard / BURST:.2f}); {row.cpu_us_per_request:.0f} us of the server a request; waiting and "
        f"asking each second costs {row.standing_cpu:.1%} of a core"
    )


def _tell_reap(row: ReapRow) -> None:
    typer.echo(
        f"reap: {row.num_running} requests of a dead worker in {row.num_calls} calls; the dearest "
        f"{row.dearest_us / 1000:.1f} ms of the server (to be under 5)"
    )


def _tell_lanes(row: LaneRow) -> None:
    typer.echo(
        f"lanes: admit {row.admit_us:.1f} us, {row.kept_admit_us:.1f} with 45 prefixes looked for; take "
        f"{row.take_us:.1f}, {row.kept_take_us:.1f} of its own lane, {row.overtaking_take_us:.1f} past 15 others, "
        f"{row.nothing_left_us:.1f} where all it looks at is kept for another"
    )


def main(*, quick: bool = False) -> None:
    """The queue's scripts on the embedded server, beside bare PUBLISH."""
    load = os.getloadavg()[0]
    typer.echo(f"{os.cpu_count()} cores, load average {load:.1f} before the run")
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(_run(Path(folder), quick=quick))
    path = write_results("protocol", figures | {"quick": quick, "load_average_before": load})
    typer.echo(f"written to {path}")
