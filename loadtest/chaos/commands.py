"""`python -m loadtest chaos` (which `headrace chaos` runs) and `python -m loadtest drill`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

import typer

from loadtest.chaos import drill as drills
from loadtest.chaos.storm import Storm, native, simulated


def chaos(
    seed: int = 1,
    minutes: Annotated[float, typer.Option(min=0.1, max=240)] = 2.0,
    backend: Literal["simulated", "native"] = "simulated",
    clients: Annotated[int, typer.Option(min=0, max=500, help="Streams at once. [40, with a real model 4]")] = 0,
    interval_s: Annotated[float, typer.Option(min=0, help="Mean time between faults. [4, real model 15]")] = 0.0,
    alone: Annotated[
        bool | None, typer.Option(help="Before those minutes each kind of fault alone. [yes, real model no]")
    ] = None,
) -> None:
    """Break a whole deployment for so many minutes, under load, and check every byte. Exit code 1: a promise broke."""
    changes: dict[str, object] = {"num_clients": clients, "interval_s": interval_s}
    make = native if backend == "native" else simulated
    changes = {name: value for name, value in changes.items() if value}
    if alone is not None:
        changes["is_alone_first"] = alone
    plan = make(seed, minutes * 60, **changes)
    report = asyncio.run(Storm(plan, typer.echo).run())
    for line in report.lines():
        typer.echo(line)
    if report.violations():
        raise typer.Exit(1)


def drill(
    names: Annotated[list[str] | None, typer.Argument(help="Which drills; none: the list of them.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All of them, one after another.")] = False,
    seed: int = 1,
) -> None:
    """Cause one failure of the protocol's table for real, and check what must be seen. Exit code 1: it was not seen."""
    known = drills.names()
    unknown = sorted(set(names or []) - set(known))
    if unknown:
        raise typer.BadParameter(f"no drill is called {', '.join(unknown)}; there are {', '.join(known)}")
    if not names and not every:
        for name in known:
            typer.echo(f"{name:28} {drills.read(name).failure}")
        return
    outcomes = [_drilled(name, seed) for name in (known if every else names or [])]
    if any(outcome.broken for outcome in outcomes):
        raise typer.Exit(1)


def _drilled(name: str, seed: int) -> drills.Outcome:
    outcome = asyncio.run(drills.Run(name, seed).run())
    verdict = "FAILED" if outcome.broken else "ok"
    typer.echo(
        f"{name:28} {verdict:7}{outcome.seconds:6.1f} s  longest pause {outcome.longest_pause_s:4.1f} s  "
        + "; ".join(outcome.faults)
    )
    for words in outcome.broken:
        typer.echo(f"    {words}")
    return outcome
