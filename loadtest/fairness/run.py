"""The fairness run: weights 4:1 with two tenants and with many, of the queue in virtual time and served end to end."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import typer

from loadtest.fairness.served import Clients, Fleet, Load, serve
from loadtest.fairness.tenants import Sizes, Tenant, many_tenants, two_tenants
from loadtest.fairness.verdict import WINDOW_S, Ledger, judge
from loadtest.fairness.virtual import simulate
from loadtest.results import write_results
from loadtest.valkey import Valkey

Figures = dict[str, object]

# Slow enough workers that two gateways and the clients are never short on two cores.
TWO = Load(Sizes((10, 50), (3.4, 0.5), 64), Fleet(slots=24, step_ms=40), warm_up_s=5, num_windows=4)
MANY = Load(Sizes((16, 80), (1.1, 0.5), 8), Fleet(slots=8, step_ms=60), warm_up_s=15, num_windows=7)


def tell(title: str, ledger: Ledger, tenants: Sequence[Tenant], first_s: int, windows: int) -> Figures:
    """Each window of 10 s, and all of them as one."""
    verdicts = judge(ledger.windows(first_s, windows), tenants, ledger.largest)
    (whole,) = judge(ledger.windows(first_s, 1, windows * WINDOW_S), tenants, ledger.largest)
    worst = max(verdicts, key=lambda verdict: abs(verdict.off))
    most_off = max(verdict.most_off for verdict in verdicts)
    typer.echo(f"{title}: {windows} windows of {WINDOW_S} s, the largest request {ledger.largest} tokens")
    typer.echo(
        "  4:1 as " + " ".join(f"{verdict.ratio:.3f}" for verdict in verdicts) + f", all as one {whole.ratio:.3f}"
    )
    typer.echo(
        f"  off by {worst.off:+.2%} in the worst, by {whole.off:+.2%} over all; 2% or a request a tenant is allowed"
    )
    typer.echo(
        f"  the tenant furthest from its share was off by {most_off:.2f} of that (the larger) in a window, "
        f"by {whole.most_off:.2f} over all"
    )
    typer.echo(
        f"  {len(ledger.waits)} newcomers with one request waited {statistics.median(ledger.waits):.2f} s (median), "
        f"{max(ledger.waits):.2f} s at most"
    )
    return {
        "ratios": [verdict.ratio for verdict in verdicts], "worst": worst.off, "worst_allowed": worst.tolerance,
        "most_off": most_off, "whole_ratio": whole.ratio, "whole_most_off": whole.most_off,
        "largest_request": ledger.largest, "newcomers": len(ledger.waits),
        "newcomer_wait_p50_s": statistics.median(ledger.waits), "newcomer_wait_most_s": max(ledger.waits),
    }  # fmt: skip


def tell_served(clients: Clients, tenants: Sequence[Tenant], load: Load) -> Figures:
    """What only real processes can tell: who went before the newcomers, and whether the workers were what was short."""
    slots, first_s = load.fleet.num_workers * load.fleet.slots, clients.steady_s
    least, running = clients.watch.least_waiting(first_s), clients.watch.mean_running(first_s)
    (window,) = clients.ledger.windows(first_s, 1, load.num_windows * WINDOW_S)
    lightest = min(window[tenant.name] for tenant in tenants)
    typer.echo(
        f"  taken before a newcomer's request: {max(clients.taken_before)} at most "
        f"(one of each other tenant would be {len(tenants)})"
    )
    typer.echo(f"  the least served tenant got {lightest} tokens; {running:.1f} of {slots} sequences ran")
    typer.echo(f"  at least {least} of {len(tenants)} tenants had something waiting")
    if least < 0.99 * len(tenants) or running < 0.95 * slots:
        typer.echo("  DO NOT RELY ON THESE: not the workers were short but what is before them (a busy machine?)")
    return {
        "taken_before_newcomer_most": max(clients.taken_before), "least_served_tokens": lightest,
        "running_mean": running, "slots": slots, "tenants_waiting_least": least,
    }  # fmt: skip


def virtual(windows: int, many: int, *, lane_ms: int = 0) -> Figures:
    """`lane_ms`: each request is one of a conversation, and kept so long for the worker that served its last turn."""
    cases = (
        (two_tenants(64, 64), Sizes((20, 200), (4.5, 0.8), 2000)),
        (many_tenants(many), Sizes((4, 12), (2.5, 0.5), 64)),
    )
    figures: Figures = {}
    for tenants, sizes in cases:
        with tempfile.TemporaryDirectory() as folder:
            server = Valkey(Path(folder))
            try:
                ledger = asyncio.run(simulate(server, tenants, sizes, windows, lane_ms=lane_ms))
            finally:
                server.kill()
        name = f"{len(tenants)} tenants"
        figures[name] = tell(
            f"the queue in virtual time, {name}{', lanes' if lane_ms else ''}", ledger, tenants, WINDOW_S, windows
        )
    return figures


def served(many: int) -> Figures:
    figures: Figures = {}
    for tenants, load in ((two_tenants(80, 40), TWO), (many_tenants(many), MANY)):
        with tempfile.TemporaryDirectory() as folder:
            clients = serve(Path(folder), tenants, load)
        name = f"{len(tenants)} tenants"
        told = tell(f"served over HTTP, {name}", clients.ledger, tenants, clients.steady_s, load.num_windows)
        figures[name] = told | tell_served(clients, tenants, load)
    return figures


def main(windows: int = 6, many: int = 1000) -> None:
    """Weights 4:1 over ten-second windows, two tenants and many: the queue in virtual time, then end to end."""
    figures = {"served": served(many), "virtual": virtual(windows, many)}
    typer.echo(f"written to {write_results('fairness', figures)}")
