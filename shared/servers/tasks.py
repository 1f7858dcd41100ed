"""Ending tasks that are inside the client library."""

from __future__ import annotations

import asyncio
from typing import Any

_CANCEL_AGAIN_S = 0.2


async def end_tasks(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait until they have ended, whatever with.

    A task inside the client may lose a cancellation (one that meets a read's time-out is swallowed), so it is
    repeated until it is obeyed.
    """
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=_CANCEL_AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)
