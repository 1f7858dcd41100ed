"""What the engine failed, as against what no engine could do: it goes back to the queue, and this worker is suspected.

With the blame of a crash, so that a request which fails everywhere ends as a dead letter; without, once so many
different ones failed here that the worker is the likely culprit. Whoever else fails (a schema that cannot be held to, a
prompt too long) ends with its error as always.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from shared.redis_client import AWAY
from shared.schemas import EndFrame, Outcome
from worker.condition.quarantine import Quarantine
from worker.engine.outputs import StepOutput
from worker.holdings import Holdings, Settlement

log = logging.getLogger(__name__)
NOT_FINITE = "output_not_finite"


class Failing:
    """`sift` on the event loop, `run` as a task."""

    def __init__(self, holdings: Holdings, quarantine: Quarantine) -> None:
        self._holdings = holdings
        self._quarantine = quarantine
        self._to_give_back: asyncio.Queue[tuple[str, str, Settlement]] = asyncio.Queue()

    def sift(self, outputs: list[StepOutput]) -> list[StepOutput]:
        """What is to be published. The rest goes back."""
        return [output for output in outputs if not self._is_taken(output)]

    def _is_taken(self, output: StepOutput) -> bool:
        held = self._holdings.get(output.request_id)
        if held is None or not is_engines_fault(output):
            return False
        self._quarantine.note("not_finite", output.request_id)
        how = Settlement.RELEASED if self._quarantine.begun.is_set() else Settlement.FAILED_HERE
        log.error(
            "failed_by_engine", extra={"request_id": output.request_id, "is_blamed": how is not Settlement.RELEASED}
        )
        self._to_give_back.put_nowait((held.request_id, held.owner, how))
        return True

    async def run(self) -> None:
        while True:
            request_id, owner, how = await self._to_give_back.get()
            with contextlib.suppress(*AWAY):  # the next heartbeat finds that Redis thinks it is here, and gives it back
                await self._holdings.settle(request_id, owner, how)


def is_engines_fault(output: StepOutput) -> bool:
    if output.outcome is not Outcome.FAILED:
        return False
    end = output.frames[-1]
    return isinstance(end, EndFrame) and end.error is not None and end.error.code == NOT_FINITE
