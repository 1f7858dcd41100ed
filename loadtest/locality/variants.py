"""The fleets that are compared: what workers keep, and who gets a conversation's next turn."""

from __future__ import annotations

from dataclasses import dataclass

NUM_WORKERS, SLOTS = 4, 16
STEP_US, PREFILL_US = 20_000, 150
KV_TOKENS, WITHOUT_END = 32_768, 1_000_000


@dataclass(frozen=True, slots=True)
class Variant:
    """`lane_ms` 0: no lanes. `is_sticky`: each worker has a model of its own, so that no conversation leaves it."""

    name: str
    lane_ms: int = 0
    kv_tokens: int = KV_TOKENS
    prefix_cache: str = "tenant"
    is_sticky: bool = False

    def settings(self) -> dict[str, object]:
        """Of real processes."""
        return {
            "backend": "simulated", "max_num_seqs": SLOTS, "sim_step_us": STEP_US, "sim_kv_tokens": self.kv_tokens,
            "sim_prefill_us_per_token": PREFILL_US, "itl_target_ms": 0, "lane_ms": self.lane_ms,
            "prefix_cache": self.prefix_cache, "log_level": "warning",
        }  # fmt: skip


VARIANTS = (
    Variant("lanes", lane_ms=100),
    Variant("no lanes"),
    Variant("best: sticky, cache without end", kv_tokens=WITHOUT_END, is_sticky=True),
    Variant("worst: no cache", prefix_cache="off"),
)
