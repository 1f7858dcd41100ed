"""Drives a scheduler without an engine: sequences by hand, steps that make the token they are told to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shared.schemas import SamplingParams
from tests.unit.worker.engine.harness import EOS_ID, LetterDecoder, NoForesight
from worker.engine.detokenizer import Detokenizer
from worker.engine.executor import Schedule
from worker.engine.kv_cache_manager import KVCacheManager
from worker.engine.prefix_cache import Chain
from worker.engine.request import Sequence
from worker.engine.scheduling.policies import FirstComeFirstServed, Policy
from worker.engine.scheduling.scheduler import Scheduler

BLOCK = 4
PRIORITY, DEFAULT, FLEX, BATCH = range(4)


def make_scheduler(
    num_blocks: int = 20, *, watermark: int = 1, policy: Policy | None = None, foresees: bool = True, **limits: Any
) -> Scheduler:
    """`num_blocks` without the scratch block."""
    kv = KVCacheManager(num_blocks=num_blocks + 1, block_size=BLOCK, watermark_blocks=watermark)
    limits = {"max_num_seqs": 4, "max_step_tokens": 16} | limits
    scheduler = Scheduler(kv, policy or FirstComeFirstServed(), **limits)
    if not foresees:
        scheduler.forecast = NoForesight(BLOCK, kv.capacity_tokens)
    return scheduler


def make_sequence(
    tokens: int | Iterable[int], *, arrival: int = 0, max_tokens: int = 50, num_journaled: int = 0, **fields: Any
) -> Sequence:
    """A number of tokens: all different from those of other arrivals. The last `num_journaled` were generated."""
    token_ids = [1000 * (arrival + 1) + i for i in range(tokens)] if isinstance(tokens, int) else list(tokens)
    fields = {"arrival_s": float(arrival), "chain": Chain(b""), "rank": DEFAULT} | fields
    return Sequence(
        request_id=f"r{arrival}",
        choice=0,
        arrival=arrival,
        params=SamplingParams(max_tokens=max_tokens, seed=0),
        stop_ids=frozenset({EOS_ID}),
        detokenizer=Detokenizer(LetterDecoder(), ()),
        token_ids=token_ids,
        num_prompt_tokens=len(token_ids) - num_journaled,
        **fields,
    )


def add(scheduler: Scheduler, tokens: int | Iterable[int], **fields: Any) -> Sequence:
    sequence = make_sequence(tokens, **fields)
    scheduler.add(sequence)
    return sequence


def step(scheduler: Scheduler, token_id: int = 1) -> Schedule:
    schedule = scheduler.schedule()
    scheduler.update(schedule, [token_id] * len(schedule.sampled))
    return schedule


def steps(scheduler: Scheduler, count: int) -> list[Schedule]:
    return [step(scheduler) for _ in range(count)]
