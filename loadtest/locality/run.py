"""The locality run: how much of their prompts conversations find computed, and how soon they are answered.

200 conversations of 8 turns on four simulated workers, whose prefill costs what is not cached: with lanes, without,
and between the best there can be (no conversation ever leaves its worker, nothing is evicted) and the worst (no cache).
In virtual time, where no other work on the machine counts; `--served` over HTTP too.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import typer

from loadtest.fairness import run as fairness
from loadtest.locality.conversations import Answered, Conversation, draw
from loadtest.locality.served import serve
from loadtest.locality.variants import VARIANTS, Variant
from loadtest.locality.virtual import Fleet
from loadtest.results import write_results
from loadtest.valkey import Valkey
from shared.config import RedisSettings
from shared.redis_client import connect

Figures = dict[str, float]
Held = tuple[list[Answered], int, int]
MANY = 1000
LANE_MS = 20  # of the server's clock, on which a step of 20 virtual ms takes some 10
PACES_PER_S = {"at ease": 4.0, "at the limit": 12.0}


def figures_of(turns: list[Answered], lane_hits: int, lane_misses: int) -> Figures:
    """Times in seconds. `hit_rate` of all prompt tokens; `of_possible` of what a conversation itself had computed."""
    first = sorted(turn.first_s for turn in turns)
    possible = sum(turn.possible_tokens for turn in turns)
    return {
        "turns": len(turns),
        "hit_rate": sum(turn.cached_tokens for turn in turns) / sum(turn.prompt_tokens for turn in turns),
        "of_possible": sum(min(turn.cached_tokens, turn.possible_tokens) for turn in turns) / max(1, possible),
        "ttft_mean_s": statistics.fmean(first),
        "ttft_p50_s": statistics.median(first),
        "ttft_p95_s": first[int(0.95 * (len(first) - 1))],
        "ttft_most_s": first[-1],
        "lane_hits": lane_hits,
        "lane_misses": lane_misses,
    }


def in_virtual_time(variant: Variant, folder: Path, conversations: list[Conversation]) -> Held:
    server = Valkey(folder)
    try:
        return asyncio.run(_in_virtual_time(server, variant, conversations))
    finally:
        server.kill()


async def _in_virtual_time(server: Valkey, variant: Variant, conversations: list[Conversation]) -> Held:
    client = connect(RedisSettings(redis_url=server.url, redis_timeout_s=60))
    fleet = Fleet(client, variant)
    turns = await fleet.hold(conversations)
    hits, misses = await fleet.lanes()
    await client.aclose()
    return turns, hits, misses


def compare(conversations: list[Conversation], hold: Callable[[Variant, Path, list[Conversation]], Held]) -> object:
    """Each variant's figures, told as they come."""
    figures: dict[str, Figures] = {}
    for variant in VARIANTS:
        with tempfile.TemporaryDirectory() as folder:
            found = figures[variant.name] = figures_of(*hold(variant, Path(folder), conversations))
        typer.echo(
            f"  {variant.name}: {found['hit_rate']:.1%} of prompt tokens cached, {found['of_possible']:.1%} of what "
            f"was possible; first token {found['ttft_mean_s']:.3f} s mean, {found['ttft_p50_s']:.3f} median, "
            f"{found['ttft_p95_s']:.3f} p95, {found['ttft_most_s']:.3f} at most; kept and taken "
            f"{found['lane_hits']:.0f}, by others {found['lane_misses']:.0f}"
        )
    return figures


def main(conversations: int = 200, turns: int = 8, fair: int = 3, *, served: bool = False) -> None:
    """Prefix locality: hit rate and first tokens, with lanes, without, at best and at worst; then fairness with lanes
    and without, over `fair` windows."""
    figures: dict[str, object] = {"conversations": conversations, "turns": turns}
    for pace, per_s in PACES_PER_S.items():
        typer.echo(
            f"{conversations} conversations of {turns} turns in virtual time, {pace} ({per_s:g} begin a second):"
        )
        figures[f"virtual, {pace}"] = compare(draw(conversations, turns, per_s), in_virtual_time)
    if served:
        typer.echo(f"over HTTP, load average {os.getloadavg()[0]:.1f}:")
        figures["served"] = compare(draw(conversations, turns, PACES_PER_S["at ease"]), serve)
    if fair:
        figures["fairness"] = {
            "no lanes": fairness.virtual(fair, MANY),
            "lanes": fairness.virtual(fair, MANY, lane_ms=LANE_MS),
        }
    typer.echo(f"written to {write_results('locality', figures)}")
