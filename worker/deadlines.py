"""Deadlines of what the engine holds, asked before each step: so they hold between two chunks of a prompt as well.

Redis judges deadlines by its clock. Its `take` says how much is left, and that is counted down here from when the
reply came, by a clock that only goes forward: never early. Belongs to the engine's thread; knows no engine.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from worker.engine.outputs import StepOutput

NEVER = float("inf")
_MAX_LEFT_OVER = 1000


@dataclass(frozen=True, slots=True)
class Due:
    """When a request must have its first token, and when it must be over; in the clock's seconds."""

    start_at: float = NEVER
    end_at: float = NEVER


class Deadlines:
    """`watch` what is added, `note` what a step made, and ask for the `passed` before the next one.

    Invariant: an entry of the heap counts only while it is what `_due` says; others are left over.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._due: dict[str, float] = {}
        self._end_at: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def due(self, start_left_ms: int, left_ms: int) -> Due:
        """What is left, as of now; 0: no such deadline."""
        now = self._now()
        start_at, end_at = (now + ms / 1000 if ms > 0 else NEVER for ms in (start_left_ms, left_ms))
        return Due(start_at, end_at)

    def watch(self, request_id: str, due: Due) -> None:
        self._end_at[request_id] = due.end_at
        self._expect(request_id, min(due.start_at, due.end_at))

    def note(self, outputs: Iterable[StepOutput]) -> None:
        """Who has a token now has only its end to meet; who ended has nothing."""
        for output in outputs:
            if output.outcome is not None:
                self.forget((output.request_id,))
            elif output.num_tokens and output.request_id in self._end_at:
                self._expect(output.request_id, self._end_at[output.request_id])

    def forget(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._due.pop(request_id, None)
            self._end_at.pop(request_id, None)

    def passed(self) -> list[str]:
        """Whose time is over; each is named once and forgotten."""
        found: list[str] = []
        while self._heap and self._heap[0][0] <= self._now():
            due_at, request_id = heapq.heappop(self._heap)
            if self._due.get(request_id) == due_at:
                found.append(request_id)
                self.forget((request_id,))
        return found

    def _expect(self, request_id: str, due_at: float) -> None:
        if self._due.get(request_id) == due_at:
            return
        self._due[request_id] = due_at
        if due_at < NEVER:
            heapq.heappush(self._heap, (due_at, request_id))
        if len(self._heap) > 2 * len(self._due) + _MAX_LEFT_OVER:
            self._heap = [(at, name) for name, at in self._due.items() if at < NEVER]
            heapq.heapify(self._heap)
