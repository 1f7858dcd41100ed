"""How full vLLM is, and what its last step did: read from its scheduler's books, in our terms.

    blocks   [#####]....      #: vLLM has given them to a sequence    .: its tokens, and the growth foreseen, need them

vLLM gives blocks as tokens are computed, so a prompt under way or waiting has fewer than it will need: what is offered
to the queue is what is left after all of that. Growth is foreseen as in our own scheduler. Knows no vLLM by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from worker.backends.vllm_engine.core import Made, VllmCore
from worker.engine.request import Sequence
from worker.engine.scheduling.forecast import GrowthForecast
from worker.engine.stats import StepStats


@dataclass(slots=True)
class StepFigures:
    """Tokens computed, and of the sequences that began: how many were looked for in the cache and found. What is
    counted of prompts leaves out journaled tokens."""

    num_waiting: int
    num_used: int
    num_seqs: int = 0
    num_prefill: int = 0
    num_decode: int = 0
    num_asked: int = 0
    num_found: int = 0
    num_prompt: int = 0
    num_prompt_found: int = 0
    num_recomputed: int = 0
    preempted: list[Sequence] = field(default_factory=list[Sequence])

    def as_stats(self, execute_s: float, output_s: float) -> StepStats:
        """vLLM schedules within its step: that time is in `execute_s`. It does not say who made way for a class."""
        return StepStats(
            num_seqs=self.num_seqs,
            num_prefill_tokens=self.num_prefill,
            num_decode_tokens=self.num_decode,
            num_waiting=self.num_waiting,
            kv_blocks_used=self.num_used,
            num_preempted=len(self.preempted),
            num_displaced=0,
            num_asked_tokens=self.num_asked,
            num_found_tokens=self.num_found,
            num_prompt_tokens=self.num_prompt,
            num_prompt_found_tokens=self.num_prompt_found,
            num_recomputed_tokens=self.num_recomputed,
            num_draft_tokens=0,
            num_accepted_tokens=0,
            schedule_s=0.0,
            execute_s=execute_s,
            output_s=output_s,
        )


class Room:
    def __init__(self, core: VllmCore) -> None:
        self._core = core
        self.capacity_tokens = core.num_blocks // core.num_groups * core.block_size
        self._forecast = GrowthForecast(core.block_size, self.capacity_tokens)

    @property
    def num_used(self) -> int:
        return self._core.num_blocks - self._core.num_free_blocks

    def note_end(self, sequence: Sequence) -> None:
        """An answer that ended by itself tells how long answers are."""
        if sequence.finish_reason == "stop":
            self._forecast.record(sequence.num_generated_tokens)

    def free_tokens(self, running: Mapping[str, Sequence]) -> int:
        """Prompt tokens of one more sequence that find blocks now. With nothing running what fits alone is taken."""
        num_free, groups = self._core.num_free_blocks, self._core.num_groups
        for key, sequence in running.items():
            standing = self._core.standing(key)
            num_held = 0 if standing is None else standing.num_blocks
            num_needed = self._blocks(len(sequence.token_ids)) + self._forecast.growth_blocks(sequence)
            num_free -= max(0, num_needed * groups - num_held)
        if running:
            num_free -= self._forecast.newcomer_blocks() * groups
        return max(0, num_free // groups) * self._core.block_size

    def figures(self, running: Mapping[str, Sequence], made: Iterable[Made]) -> StepFigures:
        """Of the step that just ended, before its tokens are taken."""
        _, num_waiting = self._core.num_running_and_waiting()
        figures = StepFigures(num_waiting, self.num_used)
        cached = {one.key: one.num_cached_tokens for one in made}
        for key, sequence in running.items():
            if key in cached and sequence.num_cached_tokens is None:
                _count_begun(figures, sequence, cached[key])
            standing = self._core.standing(key)
            if standing is None:
                num_computed = len(sequence.token_ids)  # it got its last token
            else:
                num_computed = standing.num_computed_tokens
                if standing.num_preemptions > sequence.num_preemptions:
                    sequence.num_preemptions = standing.num_preemptions
                    sequence.num_lost_tokens = sequence.num_computed_tokens
                    sequence.num_computed_tokens = 0
                    figures.preempted.append(sequence)
            _count_computed(figures, sequence, num_computed)
        return figures

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._core.block_size)


def _count_begun(figures: StepFigures, sequence: Sequence, num_found: int) -> None:
    """It has its first token here, so all of it was computed or found."""
    sequence.num_cached_tokens = min(num_found, sequence.num_prompt_tokens)
    sequence.num_computed_tokens = max(sequence.num_computed_tokens, num_found)
    figures.num_asked += len(sequence.token_ids)
    figures.num_found += num_found
    figures.num_prompt += sequence.num_prompt_tokens
    figures.num_prompt_found += sequence.num_cached_tokens


def _count_computed(figures: StepFigures, sequence: Sequence, num_computed: int) -> None:
    given = num_computed - sequence.num_computed_tokens
    sequence.num_computed_tokens = num_computed
    if given <= 0:
        return
    figures.num_seqs += 1
    if given == 1:
        figures.num_decode += 1
    else:
        figures.num_prefill += given
    if sequence.num_lost_tokens:
        figures.num_recomputed += min(given, sequence.num_lost_tokens)
        sequence.num_lost_tokens = max(0, sequence.num_lost_tokens - given)
