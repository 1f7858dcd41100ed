"""Draft tokens: how many of whose are worth verifying, and which of them the model confirmed.

    step      computes     last token   d1   d2   d3            rows of one sequence, beside those of all others
              makes        t1           t2   t3   t4            t2 counts only where t1 is d1, t3 where t2 is d2 too

Verified by equality with the argmax, so drafts change no token: only how many a step makes. Whoever needs more than the
argmax has none. Invariants: drafts take budget and blocks that nobody else wants in this step, and make nobody yield;
what they took is given back when the step is over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import log
from weakref import WeakKeyDictionary

from worker.engine.executor import Schedule, Work
from worker.engine.kv_cache_manager import KVCacheManager
from worker.engine.request import NOT_FINITE, Sequence
from worker.engine.scheduling.cost_model import CostModel
from worker.engine.scheduling.forecast import GrowthForecast
from worker.engine.scheduling.prompt_lookup import PromptLookup

# Of a sequence of which nothing is known so many drafts count as tested, and this part of them as right.
PRIOR_TESTED = 2.0
PRIOR_RATE = 0.8
# Earlier tests count less with each later one; and with each step without drafts, so that it is tried again.
FADE_TESTED = 0.95
FADE_DECLINED = 0.97


@dataclass(slots=True)
class _Record:
    """What is known of one sequence's drafts."""

    lookup: PromptLookup = field(default_factory=PromptLookup)
    tested: float = 0.0
    accepted: float = 0.0

    @property
    def rate(self) -> float:
        """Of those drafts before which all were right, how many are; below 1."""
        return (self.accepted + PRIOR_RATE * PRIOR_TESTED) / (self.tested + PRIOR_TESTED)

    def fade(self, factor: float) -> None:
        self.tested *= factor
        self.accepted *= factor


class Speculation:
    """`is_plain` says whose tokens are all the argmax: no others get drafts. At most `max_drafts` a sequence."""

    def __init__(self, max_drafts: int, is_plain: Callable[[Sequence], bool]) -> None:
        self._max_drafts = max_drafts
        self._is_plain = is_plain
        self._records: WeakKeyDictionary[Sequence, _Record | None] = WeakKeyDictionary()

    def give_drafts(self, schedule: Schedule, kv: KVCacheManager, model: CostModel) -> None:
        """To the decodes of a schedule that is complete but for them. Until `take` their tables hold more than is
        forecast."""
        decodes = [
            sequence for sequence, given in schedule.chunks.items() if given == sequence.num_tokens_to_compute == 1
        ]
        price = Price(model, decodes)
        for sequence in decodes:
            if not schedule.budget or price.is_prohibitive:
                return
            record = self._record_of(sequence)
            if record is None:
                continue
            most = min(
                self._max_drafts,
                price.num_worth(record.rate, sequence.num_computed_tokens),
                schedule.budget,
                sequence.params.max_tokens - sequence.num_generated_tokens - 1,
            )
            drafts = self._propose(sequence, record, most)
            if drafts and _make_room(sequence, len(drafts), kv):
                schedule.give_drafts(sequence, drafts)

    def take(
        self, sequence: Sequence, schedule: Schedule, made: list[int], kv: KVCacheManager, forecast: GrowthForecast
    ) -> tuple[list[int], str]:
        """The sequence takes what its drafts got right and one token more, up to an end: those, and the text they
        release. `made` begins with what the step made for it. The blocks of the other drafts go back."""
        drafts = schedule.drafts[sequence]
        ids = confirmed(drafts, made)
        self._observe(sequence, len(drafts), len(ids) - 1)
        num_blocks = kv.blocks_needed(len(sequence.token_ids))
        text, num_taken = "", 0
        while num_taken < len(ids) and sequence.finish_reason is None:
            text += sequence.append(ids[num_taken])
            num_taken += 1
        schedule.num_accepted += num_taken - 1
        kv.advance(sequence, num_taken)
        kv.trim(sequence)
        for _ in range(len(sequence.block_table) - num_blocks):
            forecast.grow(sequence)
        return ids[:num_taken], text

    def _observe(self, sequence: Sequence, num_drafts: int, num_accepted: int) -> None:
        """`num_accepted` drafts were right, then one was wrong if there were more."""
        record = self._record_of(sequence)
        if record is not None:
            record.fade(FADE_TESTED)
            record.accepted += num_accepted
            record.tested += min(num_accepted + 1, num_drafts)

    def _record_of(self, sequence: Sequence) -> _Record | None:
        try:
            return self._records[sequence]
        except KeyError:
            record = self._records[sequence] = _Record() if self._is_plain(sequence) else None
            return record

    def _propose(self, sequence: Sequence, record: _Record, most: int) -> list[int]:
        """Nothing is proposed after a stop token: the choice ends there."""
        if most <= 0:
            record.fade(FADE_DECLINED)
            return []
        drafts = record.lookup.propose(sequence.token_ids, most)
        ends = (index for index, token_id in enumerate(drafts) if token_id in sequence.stop_ids)
        return drafts[: next(ends, most)]


class Price:
    """What a draft costs beside these decodes, in tokens that could be made in that time without it."""

    def __init__(self, model: CostModel, decodes: list[Sequence]) -> None:
        self._known = model.coefficients()
        if self._known is None or not decodes:
            self._seconds_a_token = 0.0
            return
        work = Work(len(decodes), sum(len(sequence.token_ids) for sequence in decodes))
        alone, per_token, per_pair = self._known
        self._seconds_a_token = (alone + per_token * work.tokens + per_pair * work.pairs) / work.tokens

    @property
    def is_prohibitive(self) -> bool:
        """No draft pays, however surely it is right."""
        return self._known is not None and self._known[1] >= self._seconds_a_token

    def num_worth(self, rate: float, position: int) -> int:
        """How many drafts pay: the k-th is of use with probability rate ** k. As many as one likes while no cost is
        known: it is learned from steps of different size."""
        if self._known is None or self._seconds_a_token <= 0:
            return _NO_LIMIT
        price = (self._known[1] + self._known[2] * position) / self._seconds_a_token
        return _NO_LIMIT if price <= 0 else int(log(min(price, 1.0)) / log(rate))


_NO_LIMIT = 1 << 30


def confirmed(drafts: list[int], made: list[int]) -> list[int]:
    """The tokens that a step made for a sequence: `made` has one after its last token, and one after each draft.

    What is not finite after a draft is left for the next step, where it comes again, after the token it belongs to.
    """
    count = 1
    while count <= len(drafts) and made[count - 1] == drafts[count - 1] and made[count] != NOT_FINITE:
        count += 1
    return made[:count]


def _make_room(sequence: Sequence, num_drafts: int, kv: KVCacheManager) -> bool:
    """Slots for the drafts, from blocks above the watermark; False, and nothing taken, when there are too few."""
    wanted = kv.blocks_needed(len(sequence.token_ids) + num_drafts) - len(sequence.block_table)
    if wanted > 0 and kv.pool.num_free - wanted < kv.watermark_blocks:
        return False
    for _ in range(wanted):
        kv.try_grow(sequence)
    return True
