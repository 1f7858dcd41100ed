"""A large batch through the whole stack, with gateways and workers killed on the way: is every line answered once?

    python -m loadtest batch

Two gateways on one store, two simulated workers. At each mark of the way one of them, or several at once, are killed
(-9) and started again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
import time
from pathlib import Path
from typing import Any

import typer

from loadtest.batch.books import Books, books_of
from loadtest.batch.client import BatchClient, input_lines
from loadtest.results import write_results
from loadtest.stack import Stack
from shared import keys
from shared.config import RedisSettings
from shared.redis_client import connect

LIMIT_S = 600.0
# How much is done when who is killed: gateways and workers by number.
KILLS: tuple[tuple[float, tuple[int, ...], tuple[int, ...]], ...] = (
    (0.10, (0,), ()),
    (0.25, (), (0,)),
    (0.40, (1,), ()),
    (0.55, (0,), (1,)),
    (0.70, (0, 1), ()),
    (0.85, (0, 1), (0, 1)),
)


def settings(step_us: float) -> dict[str, object]:
    return {
        "backend": "simulated", "max_num_seqs": 64, "max_step_tokens": 4096, "sim_step_us": step_us,
        "sim_prefill_us_per_token": 5, "sim_kv_tokens": 64 * 400, "lease_ms": 2000, "heartbeat_ms": 300,
        "reap_ms": 500, "batch_lease_s": 2, "log_level": "warning",
    }  # fmt: skip


def kill(stack: Stack, gateways: tuple[int, ...], workers: tuple[int, ...]) -> None:
    """All of them at once; then each is started again."""
    for process in [*(stack.gateways[i] for i in gateways), *(stack.workers[i] for i in workers)]:
        process.kill()
        process.wait()
    for i in gateways:
        stack.gateways[i] = stack.start_gateway(i)
    for i in workers:
        stack.workers[i] = stack.start_worker(f"worker{i}-{time.monotonic_ns()}")
    stack.wait_ready(0)


async def num_admitted(stack: Stack) -> int:
    """Requests the queue has ever let in."""
    client: Any = connect(RedisSettings(redis_url=stack.valkey.url))
    try:
        revisions = [revision.decode() for revision in await client.hkeys(keys.MODELS)]
        return sum([int(await client.hget(keys.counts(revision), "total_admitted") or 0) for revision in revisions])
    finally:
        await client.aclose()


def through(stack: Stack, data: bytes, number: int, max_tokens: int) -> tuple[Books, dict[str, object]]:
    client = BatchClient(stack.base_url)
    started = time.monotonic()
    batch = client.start(data)
    for share, gateways, workers in KILLS:
        batch = client.until(batch["id"], round(share * number), LIMIT_S)
        counts = batch["request_counts"]
        typer.echo(
            f"  {time.monotonic() - started:6.1f} s  {counts['completed']:5} done: "
            f"kill -9 of gateways {list(gateways)}, workers {list(workers)}"
        )
        kill(stack, gateways, workers)
    batch = client.until(batch["id"], number, LIMIT_S)
    while batch["status"] in ("in_progress", "finalizing"):
        batch = client.find(batch["id"])
        time.sleep(0.1)
    seconds = time.monotonic() - started
    books = books_of(
        number, max_tokens, client.answers(batch["output_file_id"]), client.answers(batch["error_file_id"])
    )
    client.close()
    runs = asyncio.run(num_admitted(stack))
    return books, {"status": batch["status"], "counts": batch["request_counts"], "runs": runs, "seconds": seconds}


def main(number: int = 2000, prompt_words: int = 14, max_tokens: int = 140, step_us: float = 20_000.0) -> None:
    """2,000 lines of about 250 tokens through /v1/batches; gateways and workers die on the way."""
    data = b"".join(input_lines(number, prompt_words, max_tokens))
    env = settings(step_us)
    typer.echo(f"{number} lines, {len(data) / 1e6:.1f} MB; two gateways, two workers")
    with (
        tempfile.TemporaryDirectory() as folder,
        Stack(Path(folder), num_workers=2, num_gateways=2, env=env) as stack,
    ):
        books, figures = through(stack, data, number, max_tokens)
    tokens = books.prompt_tokens + books.completion_tokens
    num_killed = sum(len(gateways) + len(workers) for _, gateways, workers in KILLS)
    typer.echo(f"  {figures['status']} after {figures['seconds']:.0f} s: {books}")
    typer.echo(f"  {tokens} tokens; {figures['runs']} runs in the queue; {num_killed} processes killed")
    result = {
        **dataclasses.asdict(books),
        **figures,
        "tokens": tokens,
        "killed": num_killed,
        "is_sound": books.is_sound,
    }
    typer.echo(f"written to {write_results('batch', result)}")
    if not books.is_sound:
        raise typer.Exit(1)
