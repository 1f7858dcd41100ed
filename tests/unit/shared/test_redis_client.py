"""Ending tasks, and the scripts as the server gets them."""

from __future__ import annotations

import asyncio

from shared.redis_client import end_tasks, script_text


async def test_a_task_that_swallows_a_cancellation_is_ended_all_the_same() -> None:
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed += 1
                if swallowed > 1:
                    raise

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await end_tasks(task)
    assert (task.done(), swallowed) == (True, 2)


async def test_ending_tasks_that_failed_raises_nothing() -> None:
    async def failing() -> None:
        raise ValueError

    task = asyncio.create_task(failing())
    await end_tasks(task)
    assert task.done()


def test_only_admission_is_refused_when_memory_is_full() -> None:
    assert script_text("admit").startswith("#!lua\n")
    assert script_text("emit").startswith("#!lua flags=allow-oom\n")
