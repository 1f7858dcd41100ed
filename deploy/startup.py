"""The time between starting the children and serving: progress from their logs, readiness, and what went wrong.

Knows the children by their specs and logs only; it starts and stops nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from typing import Any

import httpx

from deploy.logs import LogFollower, is_trouble, summarize, tail
from deploy.process import Process, describe_exit
from deploy.supervisor import Supervisor
from deploy.terminal import say
from shared.errors import HeadraceError

READY_POLL_S = 0.1
LOG_POLL_S = 1.0
REMIND_S = 10.0

Followers = Mapping[str, LogFollower]


class LaunchFailed(HeadraceError):
    """A child did not come up. The message ends with the last lines of its log."""

    code = "launch_failed"


async def unless_one_dies(supervisor: Supervisor, step: Coroutine[Any, Any, None], timeout_s: float) -> None:
    """Run a step of start-up. A child that ends meanwhile, or the timeout, is a LaunchFailed."""
    work = asyncio.ensure_future(step)
    death = asyncio.ensure_future(supervisor.first_death())
    try:
        await asyncio.wait({work, death}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if death.done():
            raise _launch_failed(death.result())
        if not work.done():
            raise LaunchFailed(f"not ready after {timeout_s:g} s (HEADRACE_READY_TIMEOUT_S)")
        await work
    finally:
        work.cancel()
        death.cancel()
        await asyncio.gather(work, death, return_exceptions=True)


async def wait_until_ready(ready_url: str, followers: Followers) -> None:
    """Returns once `ready_url` answers 200; says what the children log meanwhile. Waits for ever: bound it outside."""
    last: dict[str, str] = {}
    reminded = time.monotonic()
    async with httpx.AsyncClient(timeout=5.0, trust_env=False) as client:
        while not await _is_ready(client, ready_url):
            if _say_progress(followers, last):
                reminded = time.monotonic()
            elif time.monotonic() - reminded > REMIND_S:
                reminded = time.monotonic()
                say(f"  still waiting ({'; '.join(f'{name}: {text}' for name, text in last.items()) or 'no word yet'})")
            await asyncio.sleep(READY_POLL_S)
    _say_progress(followers, last)


async def report_troubles(followers: Followers) -> None:
    """Say each error the children log, for ever."""
    while True:
        for name, follower in followers.items():
            for line in filter(is_trouble, follower.new_lines()):
                say(f"  {name}: {summarize(line)}")
        await asyncio.sleep(LOG_POLL_S)


def _say_progress(followers: Followers, last: dict[str, str]) -> bool:
    said = False
    for name, follower in followers.items():
        for line in filter(_is_progress, follower.new_lines()):
            last[name] = summarize(line)
            say(f"  {name}: {last[name]}")
            said = True
    return said


def _is_progress(line: str) -> bool:
    """Our own questions, where the gateway logs them, are no progress."""
    return bool(line.strip()) and "/health/" not in line


async def _is_ready(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(url)).status_code == 200
    except httpx.HTTPError:
        return False


def _launch_failed(process: Process) -> LaunchFailed:
    spec = process.spec
    lines = "\n".join(f"  | {line}" for line in tail(spec.log_path)) or "  | (it wrote nothing)"
    how = describe_exit(process.returncode or 0)
    return LaunchFailed(f"{spec.name} ended while starting ({how}). The end of {spec.log_path}:\n{lines}")
