"""What a storm did and what clients saw of it, as one table, totals, and the list of broken promises.

A pause is put down to the fault that began in it, or shortly before it; with several, to the first; with none, to the
one that was under way. Where faults overlap this is a guess, and the longest pause of a kind is an upper bound.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from loadtest.chaos.books import Rest
from loadtest.chaos.fleet import Death
from loadtest.chaos.load import Stumble, Tally

# A fault shows at most so long after it began: that long before a pause, it may be its cause.
_SHORTLY_S = 1.5
# Tail and witness lost together: an explicit error. A cut may take more than was not flushed yet, so a request that was
# waited for on the disk may be gone as well.
_EXCUSED_BY_POWER_LOSS = ("error:stream_contradiction", "error:request_not_found")


@dataclass(frozen=True, slots=True)
class Injected:
    kind: str
    what: str
    began: float
    ended: float


@dataclass(slots=True)
class Report:
    seed: int
    seconds: float
    injected: list[Injected]
    tally: Tally
    rest: Rest
    deaths: list[Death]
    struck: dict[str, int]
    can_resume: bool
    remarks: list[str] = field(default_factory=list[str])

    @property
    def num_faults(self) -> int:
        return len(self.injected) + sum(self.struck.values())

    def violations(self) -> list[str]:
        """Promises not kept, in words; empty when all were."""
        found = [*self.remarks, *self.rest.problems[:10]]
        found += [f"{d.name} died by itself, code {d.code}: {d.last_line}" for d in self.deaths if not d.failpoint]
        damage = self.tally.damage
        if damage:
            found.append(f"lost {damage.lost}, doubled {damage.doubled}, out of order {damage.out_of_order}")
        unexcused = self._unexcused()
        found += [f"{number} streams ended with {end}" for end, number in sorted(unexcused.items())]
        found += [words for words in self.tally.odd if any(f" ended {end} " in words for end in unexcused)][:10]
        if not self.rest.is_clean:
            found.append(f"not at rest: {self.rest.words()}")
        if self._num_unsettled():
            found.append(f"{self._num_unsettled()} accepted requests did not settle")
        return found

    def lines(self) -> list[str]:
        tally, rest = self.tally, self.rest
        damage = tally.damage
        ends = ", ".join(f"{end} {number}" for end, number in sorted(tally.ends.items()))
        states = ", ".join(f"{state} {number}" for state, number in sorted(rest.states.items()))
        violations = self.violations()
        return [
            *self._table(),
            "",
            f"seed {self.seed}, {self.seconds:.0f} s, {self.num_faults} faults"
            f" ({len(self.injected)} injected, {sum(self.struck.values())} at failpoints)",
            f"clients   {tally.ends.total()} requests: {ends}; {tally.num_resumed} resumed on another gateway"
            + ("" if self.can_resume else " (this gateway cannot resume: a killed one breaks its streams)"),
            f"accepted  {len(tally.accepted)} = settled {rest.num_settled()}{self._lost_ends()} ({states})",
            f"tokens    {tally.num_tokens}: lost {damage.lost}, doubled {damage.doubled},"
            f" out of order {damage.out_of_order}",
            f"at rest   {rest.words()}",
            *(f"BROKEN    {words}" for words in violations),
            "verdict   " + ("FAILED" if violations else "every promise was kept"),
        ]

    def _table(self) -> list[str]:
        causes = blame(self.tally.stumbles, self.injected)
        counts: dict[str, int] = defaultdict(int)
        for fault in self.injected:
            counts[fault.kind] += 1
        rows = [(kind, counts[kind], causes.get(kind, [])) for kind in sorted(counts)]
        rows += [(kind, 0, stumbles) for kind, stumbles in causes.items() if kind not in counts]
        head = f"{'fault':28}{'count':>6}{'longest pause':>15}{'streams paused':>16}{'broken':>8}"
        lines = [head, "-" * len(head)]
        for kind, count, stumbles in rows:
            pauses = [s.ended - s.began for s in stumbles if not s.is_broken]
            longest = f"{max(pauses):.1f} s" if pauses else "-"
            broken = sum(s.is_broken for s in stumbles)
            paused = len({s.request_id for s in stumbles if not s.is_broken})
            lines.append(f"{kind:28}{count or '':>6}{longest:>15}{paused:>16}{broken:>8}")
        return lines + [f"{'at ' + kind:28}{number:>6}" for kind, number in sorted(self.struck.items())]

    def _lost_ends(self) -> str:
        if not self.rest.gone:
            return ""
        return f" + {len(self.rest.gone)} that ended and went with the lost end of the file"

    def _has(self, *kinds: str) -> bool:
        return any(fault.kind in kinds for fault in self.injected)

    def _unexcused(self) -> dict[str, int]:
        """Ends that no accepted request may have come to."""
        allowed = {"finished", "left", "refused", "unanswered"}
        if self._has("redis_power_loss"):
            allowed |= set(_EXCUSED_BY_POWER_LOSS)
        if not self.can_resume:
            allowed.add("broken")
        return {end: number for end, number in self.tally.ends.items() if end not in allowed}

    def _num_unsettled(self) -> int:
        """A request that went with the lost end of the file is settled if its client has its answer, or left."""
        unsettled = len(self.tally.accepted) - self.rest.num_settled()
        if self._has("redis_power_loss"):
            answered = ("finished", "left", "broken", *_EXCUSED_BY_POWER_LOSS)
            unsettled -= sum(self.tally.accepted[request_id] in answered for request_id in self.rest.gone)
        return unsettled


def blame(stumbles: Sequence[Stumble], injected: Sequence[Injected]) -> dict[str, list[Stumble]]:
    """Kind of fault -> what it caused; `(none)` where no fault was near."""
    causes: dict[str, list[Stumble]] = defaultdict(list)
    for stumble in stumbles:
        causes[_cause(stumble, injected)].append(stumble)
    return causes


def _cause(stumble: Stumble, injected: Sequence[Injected]) -> str:
    began_in_it = [f for f in injected if stumble.began - _SHORTLY_S <= f.began <= stumble.ended]
    if began_in_it:
        return min(began_in_it, key=lambda f: f.began).kind
    under_way = [f for f in injected if f.began <= stumble.began <= f.ended + _SHORTLY_S]
    return max(under_way, key=lambda f: f.began).kind if under_way else "(none)"
