"""What is told about scaling: the figures of a revision and of a name, and the policy as settings have it. Pure.

The fields are the JSON of `/operator/v1/scaling`: autoscalers read `wanted_workers` by its path (docs/scaling.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.config import GatewaySettings
from shared.operations.scaling.wanted import Policy


@dataclass(frozen=True, slots=True)
class RevisionScaling:
    """One revision. Times in ms. `waiting_tokens`: of prompts; `expected_tokens`: with the answers, as long as those
    of late. `drain_per_s`, `drain_tokens_per_s`: requests that finished in the last minute, and their answers' tokens,
    a second. `worker_tokens_per_s`: prompts and answers, of one worker with all its slots busy, as the last 200 ends
    show it; 0: not known yet. `wait_ms`: what whoever comes now is to wait; None where it cannot be told. Workers that
    drain are not counted."""

    model: str
    at_ms: int
    is_paused: bool
    waiting: int
    waiting_tokens: int
    expected_tokens: int
    oldest_age_ms: int
    wait_ms: int | None
    running: int
    live_workers: int
    busy_slots: int
    slots: int
    utilisation: float
    drain_per_s: float
    drain_tokens_per_s: float
    worker_tokens_per_s: float
    idle_ms: int
    needed_workers: int
    because: str


@dataclass(frozen=True, slots=True)
class ModelScaling:
    """A model name: `wanted_workers` is for all its revisions, within the bounds of `policy`."""

    model: str
    wanted_workers: int
    live_workers: int
    policy: Policy
    revisions: list[RevisionScaling]


def policy_of(settings: GatewaySettings) -> Policy:
    return Policy(
        target_wait_s=settings.scaling_target_wait_s,
        utilisation=settings.scaling_utilisation,
        min_workers=settings.scaling_min_workers,
        max_workers=settings.scaling_max_workers,
        idle_s=settings.scaling_idle_s,
        tolerance=settings.scaling_tolerance,
    )
