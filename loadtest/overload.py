"""Twice of what the workers can do, from clients that do not care: who is let in, how long they wait, who is told what.

Arrivals are open-loop (drawn in advance from a seed). A refused client waits as long as it was told and comes back
with the same request, each time by a gateway drawn at random, until it is let in or the run is over. Told right is told
within 30% of what it took. Clients ask different things, or with `--same` all the very same, without a key.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from loadtest.client import Reply, complete
from loadtest.results import write_results
from loadtest.stack import Stack
from shared import keys
from shared.config import RedisSettings
from shared.redis_client import connect

SLOTS, STEP_US, MAX_TOKENS = 16, 20_000, 32
MAX_WAITING = 60
SERVICE_S = MAX_TOKENS * STEP_US / 1e6
START_DEADLINE_S = 8.0
RIGHT = 0.3
ENV = {
    "backend": "simulated", "max_num_seqs": SLOTS, "sim_step_us": STEP_US, "sim_prefill_us_per_token": 0,
    "max_waiting": MAX_WAITING, "start_deadline_s": START_DEADLINE_S, "log_level": "warning",
}  # fmt: skip


@dataclass(slots=True)
class Story:
    """One client: when it came, what it was told at its first refusal, when it was let in, how that went."""

    arrived_s: float
    told_s: float = 0.0
    refused_s: float = 0.0
    tries: int = 0
    let_in_s: float | None = None
    reply: Reply | None = None


@dataclass(slots=True)
class Run:
    stack: Stack
    model: str
    is_same: bool = False
    started: float = field(default_factory=time.monotonic)
    stories: list[Story] = field(default_factory=list[Story])
    depths: list[int] = field(default_factory=list[int])
    statuses: Counter[int] = field(default_factory=Counter[int])

    def now_s(self) -> float:
        return time.monotonic() - self.started


async def _client(run: Run, story: Story, number: int, until_s: float) -> None:
    prompt = "the same" if run.is_same else f"request {number}"
    body = {"model": run.model, "prompt": prompt, "max_tokens": MAX_TOKENS, "ignore_eos": True}
    draw = random.Random(number)
    await asyncio.sleep(max(0.0, story.arrived_s - run.now_s()))
    while run.now_s() < until_s:
        asked_s = run.now_s()
        story.tries += 1
        try:
            reply = await complete(draw.choice(run.stack.ports), body)
        except (OSError, TimeoutError):
            run.statuses[0] += 1
            return
        run.statuses[reply.status] += 1
        if reply.status != 429:
            story.let_in_s, story.reply = asked_s, reply
            return
        if not story.told_s:
            story.told_s, story.refused_s = reply.retry_after_s, run.now_s()
        await asyncio.sleep(reply.retry_after_s)


async def _watch(run: Run, client: Any, revision: str) -> None:
    while True:
        waiting = await client.hget(keys.counts(revision), "waiting")
        run.depths.append(int(waiting or 0))
        await asyncio.sleep(0.1)


async def _capacity(run: Run) -> float:
    """Requests a second when there is always one more: measured, since this machine takes part in it."""
    body = {"model": run.model, "prompt": "capacity", "max_tokens": MAX_TOKENS, "ignore_eos": True}
    started, number = time.monotonic(), SLOTS * 6
    gate = asyncio.Semaphore(SLOTS * 2)

    async def one(port: int) -> None:
        async with gate:
            assert (await complete(port, body)).status == 200

    await asyncio.gather(*(one(run.stack.ports[i % len(run.stack.ports)]) for i in range(number)))
    return number / (time.monotonic() - started)


async def overload(stack: Stack, seconds: float, factor: float, *, is_same: bool = False) -> tuple[Run, float, float]:
    """The run, the capacity it was measured against, and the rate that came."""
    run = Run(stack, "simulated", is_same)
    capacity = await _capacity(run)
    client: Any = connect(RedisSettings(redis_url=stack.valkey.url))
    revision = (await client.hkeys("hr:models"))[0].decode()
    rng, at_s = random.Random(1), 0.0
    while (at_s := at_s + rng.expovariate(capacity * factor)) < seconds:
        run.stories.append(Story(at_s))
    run.started = time.monotonic()
    watch = asyncio.create_task(_watch(run, client, revision))
    until_s = seconds * factor + 5
    await asyncio.gather(*(_client(run, story, i, until_s) for i, story in enumerate(run.stories)))
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)
    await client.aclose()
    return run, capacity, len(run.stories) / seconds


def _quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def tell(run: Run, capacity: float, rate: float) -> dict[str, object]:
    bound_s = MAX_WAITING / capacity + SERVICE_S / MAX_TOKENS
    first = [story.reply.first_s for story in run.stories if story.reply is not None and story.reply.status == 200]
    refused = [story for story in run.stories if story.told_s]
    back = [story for story in refused if story.let_in_s is not None]
    # What it took beside what was told; the way there and back is not the queue's.
    factors = [(story.let_in_s - story.refused_s) / story.told_s for story in back if story.let_in_s is not None]
    right = sum(abs(factor - 1) <= RIGHT for factor in factors)
    at_first_return = sum(story.tries == 2 for story in back)
    late = sum(seconds > START_DEADLINE_S for seconds in first)
    gateways = len(run.stack.ports)
    typer.echo(
        f"{gateways} gateways; capacity {capacity:.1f} requests/s, {rate:.1f}/s came, "
        f"answers by status {dict(run.statuses)}"
    )
    typer.echo(f"waiting: at most {max(run.depths)} of {MAX_WAITING}, median {statistics.median(run.depths):.0f}")
    typer.echo(
        f"first token of who was let in: median {_quantile(first, 0.5):.2f} s, p99 {_quantile(first, 0.99):.2f} s; "
        f"the bound implies {bound_s:.2f} s; begun after the deadline: {late}"
    )
    typer.echo(
        f"refused {len(refused)}, told {_quantile([s.told_s for s in refused], 0.5):.1f} s (median); of {len(back)} "
        f"who got in later {at_first_return} did at their first return; told within {RIGHT:.0%}: {right} "
        f"({right / max(1, len(back)):.0%}); took {_quantile(factors, 0.5):.2f} (median) to "
        f"{_quantile(factors, 0.95):.2f} (p95) times what was told"
    )
    return {
        "gateways": gateways, "capacity": capacity, "rate": rate,
        "statuses": {str(k): v for k, v in run.statuses.items()},
        "max_waiting_seen": max(run.depths), "bound_s": bound_s, "first_token_p50_s": _quantile(first, 0.5),
        "first_token_p99_s": _quantile(first, 0.99), "begun_late": late, "refused": len(refused),
        "back": len(back), "told_right": right, "at_first_return": at_first_return,
        "took_over_told_p50": _quantile(factors, 0.5), "took_over_told_p95": _quantile(factors, 0.95),
    }  # fmt: skip


def main(seconds: float = 60.0, factor: float = 2.0, gateways: int = 2, same: bool = False) -> None:
    """Twice the capacity for a minute: bounded, told right, in time, by whatever gateway a client comes back."""
    with tempfile.TemporaryDirectory() as folder, Stack(Path(folder), num_gateways=gateways, env=ENV) as stack:
        run, capacity, rate = asyncio.run(overload(stack, seconds, factor, is_same=same))
        figures = tell(run, capacity, rate)
    typer.echo(f"written to {write_results('overload_same' if same else 'overload', figures)}")
