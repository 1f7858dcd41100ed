"""What an engine says after a step. Frames are journal frames: the publisher only encodes them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from shared.schemas import Frame, Outcome
from worker.engine.stats import StepStats


@dataclass(slots=True)
class StepOutput:
    """What one step made for one request.

    `frames` go to the journal in this order. `num_tokens` counts the new token ids in them.
    `outcome` is set in the request's last output, whose last frame is then its EndFrame.
    """

    request_id: str
    frames: list[Frame] = field(default_factory=list[Frame])
    num_tokens: int = 0
    outcome: Outcome | None = None


@dataclass(slots=True, frozen=True)
class EngineLoad:
    """How full an engine is. `free_slots` and `free_tokens` say what it can take now: the number of
    sequences (choices) and of prompt tokens it has KV blocks for, less what it keeps for growth."""

    num_running: int
    num_waiting: int
    free_slots: int
    free_tokens: int
    kv_blocks_total: int
    kv_blocks_used: int
    preemptions: int = 0
    steps: int = 0
    last_step: StepStats | None = None

    def figures(self) -> dict[str, float]:
        """What heartbeats tell: numbers by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "last_step"}
