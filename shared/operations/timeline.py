"""What happened to one request, step by step: its hash and the events of its journal as a list with durations.

Pure, and without text: an operator sees when and where, never what was said. Most times are the server's; those of
`first_token` (but for the first of all) and `preempted` are the worker's own clock, so a step never begins before the
one it follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from shared.schemas import EventFrame, Frame, TokensFrame

_WAITING_AFTER = frozenset({"queued", "readmitted", "requeued", "released"})


@dataclass(slots=True)
class Step:
    """`lasted_ms` and `tokens`: until the next step; of the last step of a request not done: until now."""

    event: str
    at_ms: int
    lasted_ms: int = 0
    worker: str = ""
    attempt: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timeline:
    """`time_in` adds the steps up: waiting, prefill (a take to its first token), decode (the rest of running).

    `fields` is the request's hash, `workers` are those that took it, in order.
    """

    request_id: str
    model: str
    state: str
    fields: dict[str, str]
    gateways: list[str]
    steps: list[Step]
    workers: list[str]
    time_in: dict[str, int]


def steps_of(fields: Mapping[str, str], frames: Sequence[Frame], now_ms: int) -> list[Step]:
    """From `queued` to the end, or to now."""
    steps: list[Step] = []
    for frame in frames:
        if isinstance(frame, EventFrame):
            steps.append(_step(frame, fields))
        elif isinstance(frame, TokensFrame) and steps:
            steps[-1].tokens += len(frame.token_ids)
    _insert_admission(steps, int(fields.get("admitted_at", now_ms)))
    if "finished_at" in fields:
        steps.append(Step(fields["state"], int(fields["finished_at"])))
    for before, after in pairwise(steps):
        after.at_ms = max(after.at_ms, before.at_ms)
        before.lasted_ms = after.at_ms - before.at_ms
    if "finished_at" not in fields:
        steps[-1].lasted_ms = max(0, now_ms - steps[-1].at_ms)
    return steps


def workers_of(steps: Sequence[Step]) -> list[str]:
    return list(dict.fromkeys(step.worker for step in steps if step.event == "taken"))


def time_in(steps: Sequence[Step]) -> dict[str, int]:
    total = {"waiting": 0, "prefill": 0, "decode": 0}
    has_tokens = False
    for step in steps:
        has_tokens |= step.event == "first_token" or step.tokens > 0
        if step.event in _WAITING_AFTER:
            total["waiting"] += step.lasted_ms
        else:
            total["decode" if has_tokens else "prefill"] += step.lasted_ms
    return total


def _step(frame: EventFrame, fields: Mapping[str, str]) -> Step:
    at = frame.detail.get("at", 0)
    if frame.name == "first_token":
        at = fields.get("first_token_at", at)
    detail = frame.detail
    return Step(frame.name, int(at), worker=str(detail.get("worker", "")), attempt=int(detail.get("attempt", 0)))


def _insert_admission(steps: list[Step], at_ms: int) -> None:
    """First, unless a gateway brought it back: then its earlier steps come from the journal it kept."""
    place = next((i for i, step in enumerate(steps) if step.at_ms >= at_ms), len(steps))
    steps.insert(place, Step("readmitted" if place else "queued", at_ms))
