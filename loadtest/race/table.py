"""The race's figures: medians over rounds, as a table to read and as a record to keep."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

import typer

from loadtest.race.field import Run

Runs = Mapping[str, Mapping[str, list[Run]]]


def percentile(values: list[float], share: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def show(
    runs: Runs, agreed: Mapping[str, float], bits: Mapping[str, float], bandwidth_gb_s: float
) -> dict[str, object]:
    """Prints the table; returns the record."""
    rows: dict[str, object] = {}
    typer.echo(
        f"\n{'':26s} {'decode tokens/s at':>24s} {'TTFT of 512, ms':>24s} {'same, 90% shared':>24s} "
        f"{'ITL p50/p99 at 8, ms':>22s} {'as fp32':>8s}"
    )
    for name, loads in runs.items():
        row = {load: _figures(made) for load, made in loads.items()}
        rows[name] = {**row, "bits": bits[name], "agreement": agreed.get(name)}
        speeds = " ".join(f"{row[f'short {n}']['decode_per_s']:7.0f}" for n in (1, 8, 32))
        ttfts, shared = (
            " ".join(f"{row[f'{load} {n}']['ttft_p50_ms']:7.0f}" for n in (1, 8, 32) if f"{load} {n}" in row)
            for load in ("long", "shared")
        )
        itl = f"{row['long 8']['itl_p50_ms']:9.1f} {row['long 8']['itl_p99_ms']:9.1f}"
        share = f"{agreed[name]:8.0%}" if name in agreed else " " * 8
        typer.echo(f"{name:26s} {speeds:>24s} {ttfts:>24s} {shared:>24s} {itl:>22s} {share}")
    typer.echo(f"memory is read at {bandwidth_gb_s:.1f} GB/s here")
    return {"read_gb_s": round(bandwidth_gb_s, 1), "contestants": rows}


def _figures(made: list[Run]) -> dict[str, float]:
    def median(figure: Callable[[Run], float]) -> float:
        return round(statistics.median(figure(run) for run in made), 2)

    return {
        "tokens_per_s": median(lambda run: run.tokens_per_s),
        "decode_per_s": median(lambda run: run.decode_per_s),
        "ttft_p50_ms": median(lambda run: percentile(run.ttfts, 0.5) * 1000),
        "ttft_p99_ms": median(lambda run: percentile(run.ttfts, 0.99) * 1000),
        "itl_p50_ms": median(lambda run: percentile(run.itls, 0.5) * 1000),
        "itl_p99_ms": median(lambda run: percentile(run.itls, 0.99) * 1000),
    }
