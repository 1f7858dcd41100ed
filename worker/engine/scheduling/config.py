"""What of scheduling can be set, and the scheduler that follows from it. The same for every backend that schedules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shared.errors import ConfigurationError
from worker.engine.kv_cache_manager import CacheScope, KVCacheManager
from worker.engine.request import Sequence
from worker.engine.scheduling.cost_model import Pace
from worker.engine.scheduling.foresight import Foresight
from worker.engine.scheduling.policies import POLICIES
from worker.engine.scheduling.scheduler import Scheduler
from worker.engine.scheduling.speculation import Speculation


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """`policy` is a name of POLICIES, `prefix_cache` one of CacheScope. `itl_target_ms` 0: prompts are cut by
    `max_step_tokens` only. `max_drafts` of a sequence in a step; 0: none are made. `overlap`: where a runner
    computes by itself, the next step is launched before this one has ended, if it can be foreseen."""

    max_num_seqs: int = 32
    max_step_tokens: int = 512
    policy: str = "priority"
    prefix_cache: str = "tenant"
    itl_target_ms: float = 25.0
    max_drafts: int = 0
    overlap: bool = True

    def build(
        self,
        *,
        num_blocks: int,
        block_size: int,
        is_plain: Callable[[Sequence], bool] | None = None,
        runs_ahead: bool = False,
    ) -> Scheduler:
        """`num_blocks` counts the scratch block. `is_plain` says whose tokens are all the argmax; None: of a backend
        that verifies no drafts. `runs_ahead`: it takes a step before the one before it has ended. Raises
        ConfigurationError."""
        if self.policy not in POLICIES:
            raise ConfigurationError(f"scheduling policy {self.policy!r} is not one of {', '.join(POLICIES)}")
        if self.max_drafts and is_plain is None:
            raise ConfigurationError(
                "this backend has no model that could verify drafts: HEADRACE_SPECULATION must be off"
            )
        return Scheduler(
            KVCacheManager(num_blocks=num_blocks, block_size=block_size, scope=CacheScope(self.prefix_cache)),
            POLICIES[self.policy](),
            max_num_seqs=self.max_num_seqs,
            max_step_tokens=self.max_step_tokens,
            pace=Pace(self.itl_target_ms / 1000),
            speculation=Speculation(self.max_drafts, is_plain) if self.max_drafts and is_plain else None,
            foresight=Foresight(is_plain) if self.overlap and runs_ahead and is_plain else None,
        )
