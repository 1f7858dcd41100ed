"""The fleets that are compared: what workers keep, and who gets a conversation's next turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.locality.conversations import Answered, Conversation, hold_all
from loadtest.stack import Stack
from shared import keys
from shared.config import RedisSettings
from shared.redis_client import connect

NUM_WORKERS = 4
KV_TOKENS, WITHOUT_END = 32_768, 1_000_000
SETTINGS: dict[str, object] = {
    "backend": "simulated", "max_num_seqs": 16, "sim_step_us": 20_000, "sim_prefill_us_per_token": 150,
    "sim_kv_tokens": KV_TOKENS, "itl_target_ms": 0, "log_level": "warning",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Variant:
    """`is_sticky`: a worker has a model of its own, so that a conversation cannot leave it."""

    name: str
    settings: dict[str, object] = field(default_factory=dict[str, object])
    is_sticky: bool = False


VARIANTS = (
    Variant("lanes"),
    Variant("no lanes", {"lane_ms": 0}),
    Variant("best: sticky, cache without end", {"lane_ms": 0, "sim_kv_tokens": WITHOUT_END}, is_sticky=True),
    Variant("worst: no cache", {"prefix_cache": "off"}),
)


@dataclass(frozen=True, slots=True)
class Held:
    """`lane_hits`: taken by the worker that each was kept for; `lane_misses`: by another, when its time was over."""

    turns: list[Answered]
    lane_hits: int
    lane_misses: int


class _Fleet(Stack):
    """Sticky workers are told apart by the name of their model."""

    is_sticky = False

    def settings_of(self, name: str) -> dict[str, object]:
        return {"model_name": name} if self.is_sticky and name.startswith("worker") else {}


class _Sticky(_Fleet):
    is_sticky = True


def hold(variant: Variant, folder: Path, conversations: Sequence[Conversation]) -> Held:
    """All conversations on a stack of its own."""
    fleet = _Sticky if variant.is_sticky else _Fleet
    models = [f"worker{i}" for i in range(NUM_WORKERS)] if variant.is_sticky else ["simulated"]
    with fleet(folder, num_workers=NUM_WORKERS, env={**SETTINGS, **variant.settings}) as stack:
        return asyncio.run(_hold(stack, conversations, models))


async def _hold(stack: Stack, conversations: Sequence[Conversation], models: Sequence[str]) -> Held:
    turns = await hold_all(conversations, stack.port, models)
    client: Any = connect(RedisSettings(redis_url=stack.valkey.url))
    models_there = [name.decode() for name in await client.hkeys(keys.MODELS)]
    counted = [await client.hmget(keys.counts(model), "lane_hits", "lane_misses") for model in models_there]
    await client.aclose()
    hits, misses = (sum(int(figure or 0) for figure in column) for column in zip(*counted, strict=True))
    return Held(turns, hits, misses)
