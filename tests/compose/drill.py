"""The compose file really run: up, a streamed answer, two workers, one killed mid-stream, a drain, a restart of all.

`python -m tests.compose.drill` needs an engine (DOCKER_HOST or its usual socket), Compose v2 or later and the images of
docker-compose.yml already built. It runs a project of its own on a port of its own and removes both at the end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event

from openai import OpenAI

PORT = os.environ.get("HTTP_PORT", "29501")
PROJECT = "headrace-drill"
COMPOSE = ["docker", "compose", "--project-name", PROJECT, "--file", "docker-compose.yml"]
WAIT_S = 240
LONG, SHORT = 600, 24


def run(*argv: str) -> str:
    return subprocess.run(
        argv, check=True, text=True, stdout=subprocess.PIPE, env=os.environ | {"HTTP_PORT": PORT}
    ).stdout


def up(workers: int) -> None:
    scale = f"worker={workers}"
    run(*COMPOSE, "up", "--detach", "--wait", "--wait-timeout", str(WAIT_S), "--no-build", "--scale", scale)
    deadline = time.monotonic() + WAIT_S
    while not client().models.list().data:
        assert time.monotonic() < deadline, "no model was registered"
        time.sleep(0.5)


def client() -> OpenAI:
    return OpenAI(base_url=f"http://127.0.0.1:{PORT}/v1", api_key="none", max_retries=0, timeout=WAIT_S)


def stream(tokens: int, started: Event | None = None) -> tuple[str, str | None]:
    """The text and the finish reason; `started` is set once a few pieces have come."""
    pieces, finish = [], None
    chunks = client().chat.completions.create(
        model=client().models.list().data[0].id,
        messages=[{"role": "user", "content": "Tell a long story about a river."}],
        max_tokens=tokens,
        temperature=0,
        seed=7,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    for chunk in chunks:
        for choice in chunk.choices:
            pieces.append(choice.delta.content or "")
            finish = choice.finish_reason or finish
        if len(pieces) > 8 and started is not None:
            started.set()
    return "".join(pieces), finish


def worker_running_it() -> str:
    """The container whose log says last that it took a request."""
    taken = {}
    for container in run(*COMPOSE, "ps", "--quiet", "worker").split():
        lines = run("docker", "logs", "--timestamps", container).splitlines()
        taken[container] = max((line for line in lines if '"request_taken"' in line), default="")
    return max(taken, key=lambda container: taken[container])


def killed_unnoticed(pool: ThreadPoolExecutor, expected: str) -> str:
    started = Event()
    streaming = pool.submit(stream, LONG, started)
    assert started.wait(WAIT_S), "no token came"
    assert not streaming.done(), "the stream was over before the kill"
    victim = worker_running_it()
    assert not streaming.done(), "the stream was over before the kill"
    run("docker", "kill", victim)
    assert streaming.result() == (expected, "length"), "the client noticed the kill"
    return victim


def drained(pool: ThreadPoolExecutor) -> None:
    started = Event()
    streaming = pool.submit(stream, LONG, started)
    assert started.wait(WAIT_S), "no token came"
    run(*COMPOSE, "stop", "worker")
    assert streaming.result()[1] == "length", "a drained stream was cut"
    codes = run("docker", "inspect", "--format", "{{.State.ExitCode}}", *run(*COMPOSE, "ps", "-aq", "worker").split())
    assert set(codes.split()) == {"0"}, f"workers ended with {codes.split()}"


def restarted() -> None:
    """Accepted, and then everything restarts at once: the answer must still come."""
    accepted = client().responses.create(
        model=client().models.list().data[0].id, input="Count.", max_output_tokens=SHORT, background=True
    )
    run(*COMPOSE, "restart")
    up(2)
    deadline = time.monotonic() + WAIT_S
    while (now := client().responses.retrieve(accepted.id)).status in ("queued", "in_progress"):
        assert time.monotonic() < deadline, f"still {now.status}"
        time.sleep(0.5)
    assert now.status in ("completed", "incomplete"), now.status
    assert now.output_text


def main() -> int:
    try:
        with ThreadPoolExecutor() as pool:
            up(1)
            print("ok   up --wait")
            text, finish = stream(LONG)
            assert (finish, bool(text.strip())) == ("length", True), (finish, text)
            print(f"ok   an SDK client streamed {LONG} tokens: {text[:60]!r}")
            up(2)
            print("ok   --scale worker=2")
            print(f"ok   {killed_unnoticed(pool, text)} killed mid-stream, the client saw the same text")
            up(2)
            drained(pool)
            print("ok   stop drains: the stream ended in full, the workers with 0")
            up(2)
            restarted()
            print("ok   restart of everything: what was accepted was answered")
    finally:
        run(*COMPOSE, "down", "--volumes", "--timeout", "5")
    return 0


if __name__ == "__main__":
    sys.exit(main())
