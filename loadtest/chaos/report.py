"""What a storm did and what clients saw of it, as one table, totals, and the list of broken promises.

Before the storm each kind of fault strikes alone, and what clients see in its time is its doing: exact, of one strike.
In the storm a pause is put down to the fault that began in it, or shortly before it; with several, to the first; with
none, to the one that was under way. Where faults overlap this is a guess, and the longest pause an upper bound.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from loadtest.chaos.books import Rest
from loadtest.chaos.client import PAUSE_S
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
    """`alone` are the faults before the storm, `injected` those in it; it began at `storm_began` (monotonic)."""

    seed: int
    seconds: float
    alone: list[Injected]
    injected: list[Injected]
    storm_began: float
    tally: Tally
    rest: Rest
    deaths: list[Death]
    struck: dict[str, int]
    can_resume: bool
    remarks: list[str] = field(default_factory=list[str])

    @property
    def num_faults(self) -> int:
        return len(self.injected) + sum(self.struck.values())

    def _stumbles(self, *, in_storm: bool) -> list[Stumble]:
        return [stumble for stumble in self.tally.stumbles if (stumble.ended >= self.storm_began) is in_storm]

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
            f"seed {self.seed}, {self.seconds:.0f} s of storm, {self.num_faults} faults"
            f" ({len(self.injected)} injected, {sum(self.struck.values())} at failpoints)"
            + (f"; {len(self.alone)} times before it, alone" if self.alone else ""),
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
        alone = attribute(self._stumbles(in_storm=False), self.alone)
        guessed = blame(self._stumbles(in_storm=True), self.injected)
        counts = Counter(fault.kind for fault in self.injected)
        struck = {fault.kind: fault.what for fault in self.alone}
        kinds = sorted({*counts, *struck, *alone, *guessed})
        lines = [
            f"{'':28}{'alone, exact':^20}{'in the storm':^36}",
            f"{'fault':28}{'longest':>10}{'streams':>10}{'count':>8}{'at most':>10}{'streams':>10}{'broken':>8}"
            f"  {'struck alone' if struck else ''}",
        ]
        lines.append("-" * (len(lines[-1]) + 8))
        for kind in kinds:
            row = f"{kind:28}{_seen(alone.get(kind, []), kind in struck)}"
            row += f"{counts[kind] or '':>8}{_seen(guessed.get(kind, []), kind in counts)}"
            lines.append(f"{row}{_num_broken(guessed.get(kind, [])):>8}  {struck.get(kind, '')}".rstrip())
        return lines + [f"{'at ' + kind:28}{'':20}{number:>8}" for kind, number in sorted(self.struck.items())]

    def _lost_ends(self) -> str:
        if not self.rest.gone:
            return ""
        return f" + {len(self.rest.gone)} that ended and went with the lost end of the file"

    def _has(self, *kinds: str) -> bool:
        return any(fault.kind in kinds for fault in (*self.alone, *self.injected))

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


def _seen(stumbles: Sequence[Stumble], has_struck: bool) -> str:
    """The longest pause and the number of streams that paused."""
    pauses = [stumble.ended - stumble.began for stumble in stumbles if not stumble.is_broken]
    none = f"<{PAUSE_S} s" if has_struck else ""
    longest = f"{max(pauses):.1f} s" if pauses else none
    paused = len({stumble.request_id for stumble in stumbles if not stumble.is_broken})
    return f"{longest:>10}{paused if has_struck or paused else '':>10}"


def _num_broken(stumbles: Sequence[Stumble]) -> str:
    return str(sum(stumble.is_broken for stumble in stumbles) or "")


def attribute(stumbles: Sequence[Stumble], alone: Sequence[Injected]) -> dict[str, list[Stumble]]:
    """Kind of fault -> what clients saw in its time, which no other fault shares; `(none)` in none's.

    Where it ended counts: a pause begins with the last event before a fault, and none outlasts the calm after it.
    """
    seen: dict[str, list[Stumble]] = defaultdict(list)
    for stumble in stumbles:
        its = [fault.kind for fault in alone if fault.began <= stumble.ended <= fault.ended]
        seen[its[0] if its else "(none)"].append(stumble)
    return seen


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
