"""`python -m loadtest proxies --peers FILE`: tokens through one front, ours and others', per second of its CPU time.

FILE is TOML, a table for each front that runs already, each before a backend that makes a token every 20 ms:
`[name]` with `port`, `pid`, `model`, and `key` where it wants one. Ours is started here, with the simulated backend
behind the queue. The figure is that of the front's process alone; backends, Redis and the client are not counted.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from loadtest.edge.process import used_by
from loadtest.edge.swarm import Target, run_streams
from loadtest.results import write_results
from loadtest.stack import Stack

ENV: dict[str, object] = {
    "backend": "simulated", "sim_step_us": 20_000, "sim_prefill_us_per_token": 0, "max_num_seqs": 1000,
    "max_step_tokens": 8192, "sim_kv_tokens": 4_000_000, "itl_target_ms": 0, "log_level": "warning",
}  # fmt: skip


def measure(front: dict[str, Any], streams: int, tokens: int) -> dict[str, object]:
    """All at once, to their ends; a short run before it warms the front up."""
    headers = {"authorization": f"Bearer {front['key']}"} if "key" in front else {}
    target = Target(int(front["port"]), headers=headers)
    body = {"model": front["model"], "messages": [{"role": "user", "content": "hi"}], "max_tokens": tokens}
    asyncio.run(run_streams(target, [{**body, "max_tokens": 2}] * 8, limit_s=60))
    before, began = used_by(front["pid"]), time.monotonic()
    done = asyncio.run(run_streams(target, [body] * streams, limit_s=240))
    seconds, after = time.monotonic() - began, used_by(front["pid"])
    events, cpu_s = sum(stream.num_events for stream in done), after.cpu_s - before.cpu_s
    return {
        "complete": sum(stream.is_done for stream in done), "events": events, "seconds": round(seconds, 2),
        "events_per_s": round(events / seconds), "front_cpu_s": round(cpu_s, 2),
        "events_per_cpu_s": round(events / max(cpu_s, 0.01)), "rss_mb": round(after.rss_mb, 1),
    }  # fmt: skip


def main(peers: Annotated[Path, typer.Option()], streams: int = 64, tokens: int = 100, write: bool = True) -> None:
    """Side by side, one after another."""
    figures: dict[str, object] = {"streams": streams, "tokens": tokens}
    with tempfile.TemporaryDirectory() as folder, Stack(Path(folder), env=ENV) as stack:
        figures["headrace"] = measure(
            {"port": stack.port, "pid": stack.gateway.pid, "model": "simulated"}, streams, tokens
        )
    for name, front in tomllib.loads(peers.read_text()).items():
        figures[name] = measure(front, streams, tokens)
    for name, value in figures.items():
        typer.echo(f"  {name:16} {value}")
    if write:
        typer.echo(f"written to {write_results('proxies', figures)}")
