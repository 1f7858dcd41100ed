"""What each step did and how long its parts took: the latest of them, for metrics and for whoever looks.

Knows no metrics: worker/telemetry.py exports these figures. The engine's clock is here too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from worker.engine.executor import Schedule, Work

WINDOW = 1024


def _unix_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True, frozen=True)
class Clock:
    """`unix_ms` is what journals say; `seconds`, from anywhere, is what durations are measured by."""

    unix_ms: Callable[[], int] = _unix_ms
    seconds: Callable[[], float] = time.perf_counter


SYSTEM_CLOCK = Clock()


@dataclass(slots=True, frozen=True)
class StepStats:
    """One step. `num_prefill_tokens` are those of sequences that were given more than one, but for drafts, which are
    counted apart. What is counted of the cache: see `Schedule`. `output_s` is taking the tokens: stops, text, frames.
    """

    num_seqs: int
    num_prefill_tokens: int
    num_decode_tokens: int
    num_waiting: int
    kv_blocks_used: int
    num_preempted: int
    num_displaced: int
    num_asked_tokens: int
    num_found_tokens: int
    num_prompt_tokens: int
    num_prompt_found_tokens: int
    num_recomputed_tokens: int
    num_draft_tokens: int
    num_accepted_tokens: int
    schedule_s: float
    execute_s: float
    output_s: float

    @property
    def seconds(self) -> float:
        return self.schedule_s + self.execute_s + self.output_s


class StepRecorder:
    """`recent` has the latest steps in which something was computed."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self.recent: deque[StepStats] = deque(maxlen=WINDOW)

    @property
    def last(self) -> StepStats | None:
        return self.recent[-1] if self.recent else None

    def record(
        self, schedule: Schedule, work: Work, times: tuple[float, float, float], *, num_waiting: int, num_used: int
    ) -> StepStats:
        """`times`: when scheduling began, when computing began, when it ended. Taking the tokens ends now."""
        began, scheduled, executed = times
        num_decodes = sum(given == 1 for given in schedule.chunks.values()) + len(schedule.drafts)
        num_drafts = schedule.num_drafted
        stats = StepStats(
            num_seqs=len(schedule.chunks),
            num_prefill_tokens=work.tokens - num_decodes - num_drafts,
            num_decode_tokens=num_decodes,
            num_waiting=num_waiting,
            kv_blocks_used=num_used,
            num_preempted=len(schedule.preempted),
            num_displaced=schedule.num_displaced,
            num_asked_tokens=schedule.num_asked,
            num_found_tokens=schedule.num_found,
            num_prompt_tokens=schedule.num_prompt,
            num_prompt_found_tokens=schedule.num_prompt_found,
            num_recomputed_tokens=schedule.num_recomputed,
            num_draft_tokens=num_drafts,
            num_accepted_tokens=schedule.num_accepted,
            schedule_s=scheduled - began,
            execute_s=executed - scheduled,
            output_s=self._seconds() - executed,
        )
        self.recent.append(stats)
        return stats
