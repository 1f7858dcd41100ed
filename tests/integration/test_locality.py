"""The locality run of loadtest, short: conversations find more of their prefixes with lanes than without."""

from __future__ import annotations

from loadtest.locality.conversations import draw
from loadtest.locality.run import figures_of
from loadtest.locality.variants import VARIANTS, Variant
from loadtest.locality.virtual import Fleet
from shared.redis_client import Scripts

LANES, WITHOUT, *_ = VARIANTS


async def hit_rate(scripts: Scripts, variant: Variant) -> float:
    await scripts.client.execute_command("FLUSHALL")  # type: ignore[attr-defined]
    fleet = Fleet(scripts.client, variant)
    turns = await fleet.hold(draw(12, 4, per_s=8))
    assert len(turns) == 48
    return figures_of(turns, *await fleet.lanes())["of_possible"]


async def test_conversations_find_their_prefixes_with_lanes(scripts: Scripts) -> None:
    with_lanes, without = await hit_rate(scripts, LANES), await hit_rate(scripts, WITHOUT)
    assert with_lanes > 0.9 > 0.8 > without, (with_lanes, without)
