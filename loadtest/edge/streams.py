"""Many concurrent streams on one gateway: do all complete, and what does one cost in CPU, memory and time?

The simulated backend makes a token a stream every `step_ms`. What the gateway adds to a token's way is the time from
its message on Redis's channel, heard here beside the gateway, to its event at the client; of one stream in twenty.
Where machine time is scarce all figures of time grow with it; CPU time a token is what can be compared.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer
import uvloop

from loadtest.edge.process import Used, used_by
from loadtest.edge.swarm import Stream, Target, run_streams
from loadtest.results import write_results
from loadtest.stack import Stack
from shared.config import RedisSettings
from shared.redis_client import connect
from shared.token_stream import decode_messages

WATCHED_EVERY = 20


class Ear:
    """Hears what the gateway hears: when each text of each request was published."""

    def __init__(self, url: str) -> None:
        self._client = connect(RedisSettings(redis_url=url), blocking_s=5.0)
        self.published: dict[str, list[float]] = {}
        self._watched: set[str] = set()

    async def listen(self) -> None:
        pubsub = self._client.pubsub()
        await pubsub.psubscribe("hr:*")
        while True:
            message: dict[str, Any] | None = await pubsub.get_message(ignore_subscribe_messages=True, timeout=5.0)
            if message is None or not message["data"].startswith(b"[["):
                continue
            now = time.monotonic()
            for part in decode_messages(message["data"]):
                if part.frames.startswith('["t"') or '\n["t"' in part.frames:
                    texts = [line for line in part.frames.split("\n") if line.startswith('["t"')]
                    times = self.published.setdefault(part.request_id, [])
                    times += [now] * sum(1 for line in texts if not line.endswith(',""]'))

    async def close(self) -> None:
        await self._client.aclose()


async def measure(stack: Stack, streams: int, tokens: int, limit_s: float) -> dict[str, object]:
    ear = Ear(stack.valkey.url)
    listening = asyncio.create_task(ear.listen())
    bodies = [
        {"model": "simulated", "prompt": f"stream {i}", "max_tokens": tokens, "ignore_eos": True}
        for i in range(streams)
    ]
    before, began = used_by(stack.gateway.pid), time.monotonic()
    peak = [before]
    watching = asyncio.create_task(_watch(stack.gateway.pid, peak))
    target = Target(stack.port, "/v1/completions")
    done = await run_streams(target, bodies, limit_s=limit_s, watched_every=WATCHED_EVERY)
    seconds, after = time.monotonic() - began, used_by(stack.gateway.pid)
    for task in (watching, listening):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    await ear.close()
    added = sorted(_added_ms(done, ear.published))
    return _figures(done, before, after, peak, seconds) | {
        "added_ms_p50": _quantile(added, 0.5), "added_ms_p99": _quantile(added, 0.99), "tokens_timed": len(added),
    }  # fmt: skip


async def _watch(pid: int, peak: list[Used]) -> None:
    while True:
        await asyncio.sleep(0.5)
        peak.append(used_by(pid))


def _figures(
    done: Sequence[Stream], before: Used, after: Used, peak: Sequence[Used], seconds: float
) -> dict[str, object]:
    num_tokens = sum(stream.num_events for stream in done)
    cpu_s, most_mb = after.cpu_s - before.cpu_s, max(used.rss_mb for used in peak)
    return {
        "streams": len(done),
        "complete": sum(stream.is_done for stream in done),
        "events": num_tokens,
        "seconds": round(seconds, 2),
        "tokens_per_s": round(num_tokens / seconds),
        "gateway_cpu_s": round(cpu_s, 2),
        "gateway_kernel_s": round(after.kernel_s - before.kernel_s, 2),
        "gateway_cpu_us_per_token": round(cpu_s / num_tokens * 1e6, 1),
        "gateway_cpu_ms_per_stream": round(cpu_s / len(done) * 1e3, 2),
        "gateway_tokens_per_cpu_s": round(num_tokens / cpu_s),
        "rss_mb_before": round(before.rss_mb, 1),
        "rss_mb_most": round(most_mb, 1),
        "rss_mb_after": round(after.rss_mb, 1),
        "memory_kb_per_stream": round((most_mb - before.rss_mb) * 1024 / len(done), 1),
    }


def _added_ms(done: Sequence[Stream], published: dict[str, list[float]]) -> list[float]:
    """Of the watched streams, each text's arrival against when it was published. The last event is the finish."""
    added: list[float] = []
    for stream in done:
        request_id = _request_id(stream.head)
        if stream.is_watched and request_id in published:
            added += [(a - p) * 1000 for p, a in zip(published[request_id], stream.arrivals, strict=False)]
    return added


def _request_id(head: bytes) -> str:
    lines = (line.partition(b": ") for line in head.split(b"\r\n"))
    return next((value.decode() for name, _, value in lines if name.lower() == b"x-request-id"), "")


def _quantile(values: Sequence[float], q: float) -> float | None:
    return round(values[min(len(values) - 1, int(q * len(values)))], 2) if values else None


def main(
    streams: int = 1000, tokens: int = 200, step_ms: float = 20.0, workers: int = 1, limit_s: float = 300.0,
    write: bool = True,
) -> None:  # fmt: skip
    """So many streams at once on one gateway process, with the simulated backend."""
    env: dict[str, object] = {
        "backend": "simulated", "sim_step_us": step_ms * 1000, "sim_prefill_us_per_token": 0,
        "max_num_seqs": -(-streams // workers), "max_step_tokens": 8192, "sim_kv_tokens": 64 * (tokens + 64) * streams,
        "max_waiting": 2 * streams, "log_level": "warning", "itl_target_ms": 0,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, Stack(Path(folder), num_workers=workers, env=env) as stack:
        worker_before = sum(used_by(worker.pid).cpu_s for worker in stack.workers)
        figures = uvloop.run(measure(stack, streams, tokens, limit_s))
        figures["workers_cpu_s"] = round(sum(used_by(worker.pid).cpu_s for worker in stack.workers) - worker_before, 2)
    figures |= {"step_ms": step_ms, "tokens_asked": tokens, "workers": workers}
    for name, value in figures.items():
        typer.echo(f"  {name:28} {value}")
    if write:
        typer.echo(f"written to {write_results('streams', figures)}")
    if figures["complete"] != streams:
        raise typer.Exit(1)
