"""The locality run: how much of their prompts conversations find computed, and how soon they are answered.

200 conversations of 8 turns on four simulated workers, whose prefill costs what is not cached: with lanes, without,
and between the best there can be (no conversation ever leaves its worker, nothing is evicted) and the worst (no cache).
"""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path

import typer

from loadtest.locality.conversations import Answered, draw
from loadtest.locality.variants import VARIANTS, Held, hold
from loadtest.results import write_results

ARRIVALS_PER_S = 4.0


def figures_of(held: Held) -> dict[str, object]:
    """Times in seconds. `hit_rate` of all prompt tokens; `of_possible` of what a conversation itself had computed."""
    turns = held.turns
    first = sorted(turn.first_s for turn in turns)
    return {
        "turns": len(turns),
        "hit_rate": _rate(turns),
        "of_possible": sum(min(t.cached_tokens, t.possible_tokens) for t in turns)
        / max(1, sum(t.possible_tokens for t in turns)),
        "ttft_mean_s": statistics.fmean(first),
        "ttft_p50_s": statistics.median(first),
        "ttft_p95_s": first[int(0.95 * (len(first) - 1))],
        "ttft_later_turns_s": statistics.fmean(turn.first_s for turn in turns if turn.turn > 1),
        "lane_hits": held.lane_hits,
        "lane_misses": held.lane_misses,
    }


def _rate(turns: list[Answered]) -> float:
    return sum(turn.cached_tokens for turn in turns) / sum(turn.prompt_tokens for turn in turns)


def main(conversations: int = 200, turns: int = 8, only: str = "") -> None:
    """Prefix locality: hit rate and first tokens, with lanes, without, at best and at worst."""
    asked = draw(conversations, turns, conversations / ARRIVALS_PER_S)
    figures: dict[str, object] = {}
    for variant in VARIANTS:
        if only and only not in variant.name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = figures[variant.name] = figures_of(hold(variant, Path(folder), asked))
        typer.echo(
            f"{variant.name}: {found['hit_rate']:.1%} of prompt tokens cached, {found['of_possible']:.1%} of what was "
            f"possible; first token {found['ttft_mean_s']:.3f} s mean, {found['ttft_p50_s']:.3f} median, "
            f"{found['ttft_p95_s']:.3f} p95; kept and taken {found['lane_hits']}, by others {found['lane_misses']}"
        )
    settings = {"conversations": conversations, "turns": turns, "load_average": os.getloadavg()[0]}
    if not only:
        typer.echo(f"written to {write_results('locality', settings | {'variants': figures})}")
