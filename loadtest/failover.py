"""One `kill -9` under a full batch: who continues it, how soon, and whether anybody is tried alone or blamed.

One worker runs all requests; another with as much room starts and idles; then the first is killed. Figures come from
the journals (`taken` events with the server's time) and the request hashes, the answers from the clients.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from loadtest.client import Reply, complete
from loadtest.results import write_results
from loadtest.stack import Stack
from shared import keys
from shared.config import RedisSettings
from shared.redis_client import connect
from shared.schemas import EventFrame, decode_frames

LEASE_MS = 2000


def settings(num_requests: int, step_us: float) -> dict[str, object]:
    return {
        "backend": "simulated", "max_num_seqs": num_requests, "max_step_tokens": 16_384, "sim_step_us": step_us,
        "sim_prefill_us_per_token": 0, "sim_kv_tokens": 512 * num_requests, "lease_ms": LEASE_MS, "heartbeat_ms": 300,
        "reap_ms": 500, "log_level": "warning",
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Moved:
    """Milliseconds of the server's clock after the kill; the second attempt of one request."""

    taken_ms: float
    by: str
    attempt: int
    crashes: int


async def _until_running(client: Any, revision: str, number: int) -> None:
    while int(await client.hget(keys.counts(revision), "running") or 0) < number:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def _server_ms(client: Any) -> float:
    seconds, micros = await client.time()
    return seconds * 1000 + micros / 1000


async def _moves(client: Any, revision: str, killed_ms: float) -> list[Moved]:
    prefix = keys.request(revision, "")
    moved: list[Moved] = []
    async for name in client.scan_iter(match=prefix + "*", count=1000):
        request_id = name.decode().removeprefix(prefix)
        crashes = int(await client.hget(name, "crashes") or 0)
        frames = decode_frames(await client.get(keys.journal(revision, request_id)) or b"")
        taken = [f.detail for f in frames if isinstance(f, EventFrame) and f.name == "taken"]
        if taken:
            last = taken[-1]
            moved.append(Moved(last["at"] - killed_ms, last["worker"], last["attempt"], crashes))
    return moved


async def fail_over(stack: Stack, number: int, max_tokens: int) -> tuple[list[Reply], list[Moved]]:
    client: Any = connect(RedisSettings(redis_url=stack.valkey.url))
    revision = (await client.hkeys(keys.MODELS))[0].decode()
    body = {
        "model": "simulated", "max_tokens": max_tokens, "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    asking = [asyncio.create_task(complete(stack.port, {**body, "prompt": f"request {i}"})) for i in range(number)]
    await _until_running(client, revision, number)
    stack.workers.append(await asyncio.to_thread(stack.start_worker, "worker-again"))
    await asyncio.to_thread(stack.wait_ready, 2)
    # All of them have more than their first tokens by now: the second worker took seconds to start.
    killed_ms = await _server_ms(client)
    stack.workers[0].kill()
    replies = await asyncio.gather(*asking)
    moved = await _moves(client, revision, killed_ms)
    stack.workers.pop(0).wait()
    await client.aclose()
    return replies, moved


def tell(replies: list[Reply], moved: list[Moved], max_tokens: int) -> dict[str, object]:
    times = sorted(move.taken_ms for move in moved if move.attempt == 2)
    whole = sum(f'"completion_tokens":{max_tokens}'.encode() in reply.tail for reply in replies)
    blamed = sum(move.crashes > 0 for move in moved)
    typer.echo(f"{len(replies)} requests, one kill -9 under all of them; lease {LEASE_MS} ms")
    typer.echo(
        f"  answers {dict(Counter(reply.status for reply in replies))}, whole {whole}; continued elsewhere {len(times)}"
    )
    typer.echo(
        f"  first taken again {times[0]:.0f} ms after the kill, last {times[-1] - times[0]:.0f} ms after the first, "
        f"by {len({move.by for move in moved if move.attempt == 2})} worker; blamed {blamed}"
    )
    return {
        "requests": len(replies), "whole": whole, "continued": len(times), "blamed": blamed,
        "first_taken_ms": times[0], "last_after_first_ms": times[-1] - times[0], "lease_ms": LEASE_MS,
    }  # fmt: skip


def main(number: int = 256, max_tokens: int = 120, step_us: float = 100_000.0) -> None:
    """One kill -9 under 256 running requests: all continue at full batch elsewhere at once."""
    env = settings(number, step_us)
    with tempfile.TemporaryDirectory() as folder, Stack(Path(folder), env=env) as stack:
        replies, moved = asyncio.run(fail_over(stack, number, max_tokens))
    figures = tell(replies, moved, max_tokens)
    typer.echo(f"written to {write_results('failover', figures)}")
