"""The race's figures: medians over rounds, as a table to read and as a record to keep."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import NamedTuple

import typer

from loadtest.race.field import Run

Runs = Mapping[str, Mapping[str, list[Run]]]
COUNTS = (1, 8, 32)


class Precision(NamedTuple):
    """Share of next tokens that are those of fp32; perplexity of a text. None where a contestant does not tell."""

    agreement: float | None
    perplexity: float | None


def percentile(values: list[float], share: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def show(runs: Runs, precisions: Mapping[str, Precision], floors: Mapping[str, float]) -> dict[str, object]:
    """Prints the table; returns the record. `floors`: tokens a second if one stream's weights were all that is read."""
    rows: dict[str, object] = {}
    typer.echo(
        f"\n{'':24s} {'decode tokens/s at':>20s} {'of floor':>8s} {'TTFT of 512, ms':>20s} {'90% shared':>20s} "
        f"{'ITL p50/p99 at 8':>16s} {'as fp32':>7s} {'perplexity':>10s}"
    )
    for name, loads in runs.items():
        row = {load: _figures(made) for load, made in loads.items()}
        precise = precisions.get(name, Precision(None, None))
        of_floor = round(row["short 1"]["decode_per_s"] / floors[name], 3)
        rows[name] = {**row, "share_of_floor_at_1": of_floor, **precise._asdict()}
        itl = f"{row['long 8']['itl_p50_ms']:.0f} / {row['long 8']['itl_p99_ms']:.0f}"
        told = [
            "" if figure is None else format(figure, how) for figure, how in zip(precise, (".0%", ".2f"), strict=True)
        ]
        typer.echo(
            f"{name:24s} {_line(row, 'short', 'decode_per_s'):>20s} {of_floor:8.0%} "
            f"{_line(row, 'long', 'ttft_p50_ms'):>20s} {_line(row, 'shared', 'ttft_p50_ms'):>20s} "
            f"{itl:>16s} {told[0]:>7s} {told[1]:>10s}"
        )
    return {"contestants": rows}


def _line(row: Mapping[str, Mapping[str, float]], load: str, figure: str) -> str:
    return " ".join(f"{row[f'{load} {n}'][figure]:6.0f}" for n in COUNTS if f"{load} {n}" in row)


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
