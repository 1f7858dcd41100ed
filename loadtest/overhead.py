"""What serving costs: the same engine, model and prompts, through HTTP, Redis and SSE, and driven directly.

The two take turns in one run on one machine, so that noise hits both; the figure is the median of the rounds'
ratios. Both keep their model loaded; the one that waits is idle.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import typer

from loadtest.stack import Stack, child_environment
from shared.config import RedisSettings
from shared.redis_client import Scripts, connect
from shared.registry import Registry
from shared.text.tokenizer import Tokenizer, decode_blob

PROMPT = "Write a long story about a river, a mill and the people who live beside it. Part {number}."


class Direct:
    """The engine alone, in a process of its own."""

    def __init__(self, env: dict[str, object]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "loadtest.direct"],
            env=child_environment(env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.model = self._read()["model"]

    def run(self, prompts: list[list[int]], max_tokens: int) -> float:
        """Tokens a second."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "max_tokens": max_tokens}) + "\n")
        self._process.stdin.flush()
        done = self._read()
        return done["tokens"] / done["seconds"]

    def stop(self) -> None:
        self._process.communicate()  # closes both pipes: the end of stdin ends it

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


async def serve(port: int, model: str, prompts: list[list[int]], max_tokens: int) -> float:
    """Tokens a second of all prompts at once, streamed; tokens as `usage` counts them."""
    started = time.perf_counter()
    counts = await asyncio.gather(*(_stream(port, model, prompt, max_tokens) for prompt in prompts))
    return sum(counts) / (time.perf_counter() - started)


async def _stream(port: int, model: str, prompt: list[int], max_tokens: int) -> int:
    """A client that costs next to nothing: on this machine it would otherwise take what it measures."""
    body = json.dumps({
        "model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": True,
        "ignore_eos": True, "stream_options": {"include_usage": True},
    }).encode()  # fmt: skip
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    writer.write(head.encode() + b"\r\n\r\n" + body)
    tail = await reader.readline()
    if b" 200 " not in tail:
        raise RuntimeError(f"refused: {tail!r} {await reader.read(2000)!r}")
    while b"data: [DONE]" not in tail:
        chunk = await reader.read(65536)
        if not chunk:
            raise RuntimeError(f"the stream ended early: {tail!r}")
        tail = (tail + chunk)[-1500:]
    writer.close()
    await writer.wait_closed()
    return int(tail.rpartition(b'"completion_tokens":')[2].partition(b",")[0])


def compare(streams: int, max_tokens: int, rounds: int, env: dict[str, object]) -> list[tuple[float, float]]:
    """(direct, served) tokens a second, a pair a round."""
    with tempfile.TemporaryDirectory() as folder, Stack(Path(folder), env=env) as stack:
        direct = Direct(env)
        name = direct.model.rpartition("@")[0]
        prompts = asyncio.run(_prompts(stack.valkey.url, streams))
        pairs: list[tuple[float, float]] = []
        for number in range(rounds + 1):
            pair = (direct.run(prompts, max_tokens), asyncio.run(serve(stack.port, name, prompts, max_tokens)))
            if number:  # the first round warms both up
                pairs.append(pair)
                typer.echo(
                    f"  round {number}: direct {pair[0]:7.1f}  served {pair[1]:7.1f}  ratio {pair[1] / pair[0]:.3f}"
                )
        direct.stop()
        return pairs


async def _prompts(redis_url: str, streams: int) -> list[list[int]]:
    """Token ids by the tokenizer the worker has published: both sides get the very same prompts."""
    client = connect(RedisSettings(redis_url=redis_url))
    try:
        registry = Registry(Scripts(client))
        (card,) = await registry.models()
        blob = await registry.tokenizer(card.tokenizer_digest)
        assert blob is not None
        tokenizer = Tokenizer.from_blob(decode_blob(blob))
        return [tokenizer.encode(PROMPT.format(number=number)) for number in range(streams)]
    finally:
        await client.aclose()


def main(
    streams: int = 16, max_tokens: int = 64, rounds: int = 5, backend: str = "native", model: str = "smollm2"
) -> None:
    """Serving against the bare engine, side by side."""
    env: dict[str, object] = {
        "backend": backend,
        "model": model,
        "max_num_seqs": max(32, streams),
        "log_level": "warning",
    }
    typer.echo(f"{streams} streams of {max_tokens} tokens, {backend} backend, {os.cpu_count()} cores, tokens/s:")
    pairs = compare(streams, max_tokens, rounds, env)
    direct, served = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(pair[1] / pair[0] for pair in pairs)
    typer.echo(f"median: direct {direct:.1f}  served {served:.1f}  ratio {ratio:.3f}")
