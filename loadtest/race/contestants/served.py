"""Headrace whole: Valkey, gateway and worker as processes, spoken to over HTTP and SSE as a client does.

Its settings come by environment. Token ids are not told: a client sees text.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path

import httpx

from loadtest.race.contestants.frame import Clock, serve
from loadtest.stack import Stack


async def stream(port: int, model: str, prompt: list[int], max_tokens: int, note: tuple[Clock, int]) -> None:
    """One token a chunk that has a choice in it; what one chunk says of several counts for the rest at its end."""
    body = json.dumps({
        "model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True
    }).encode()  # fmt: skip
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    writer.write(head.encode() + b"\r\n\r\n" + body)
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(f"refused: {status!r} {await reader.read(2000)!r}")
    clock, index = note
    while line := await reader.readline():
        if line.startswith(b"data: [DONE]"):
            break
        if line.startswith(b"data: ") and b'"text":""' not in line and len(clock.times[index]) < max_tokens:
            clock.note(index, [0])
    writer.close()
    await writer.wait_closed()
    end = clock.times[index][-1]
    clock.times[index] += [end] * (max_tokens - len(clock.times[index]))


async def stream_all(port: int, model: str, prompts: list[list[int]], max_tokens: int, clock: Clock) -> None:
    await asyncio.gather(*(stream(port, model, prompt, max_tokens, (clock, i)) for i, prompt in enumerate(prompts)))
    clock.tokens = [[] for _ in prompts]


def main() -> None:
    settings = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder, Stack(Path(folder), env=settings) as stack:
        model = httpx.get(f"{stack.base_url}/v1/models", trust_env=False).json()["data"][0]["id"]

        def run(prompts: list[list[int]], max_tokens: int, clock: Clock) -> None:
            asyncio.run(stream_all(stack.port, model, prompts, max_tokens, clock))

        serve(run)


if __name__ == "__main__":
    main()
