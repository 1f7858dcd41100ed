"""llama.cpp's server. Arguments: its binary, the GGUF, threads, 'cached' or 'uncached' (its own prompt cache).

Streams over HTTP on loopback, one connection a prompt, as its clients do.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import threading
import time

from loadtest.race.contestants.frame import Clock, serve

NUM_SLOTS, SLOT_TOKENS, VOCABULARY = 32, 1024, 49_152


def start(binary: str, model: str, threads: str, port: int) -> subprocess.Popen[bytes]:
    argv = [
        binary, "-m", model, "-t", threads, "-tb", threads, "-np", str(NUM_SLOTS), "-c", str(NUM_SLOTS * SLOT_TOKENS),
        "--host", "127.0.0.1", "--port", str(port), "-fa", "on",
    ]  # fmt: skip
    return subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_ready(port: int) -> None:
    for _ in range(600):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise RuntimeError("the server did not become ready")


def stream(port: int, prompt: list[int], max_tokens: int, note: tuple[Clock, int], *, is_cached: bool) -> None:
    body = {
        "prompt": prompt, "n_predict": max_tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": is_cached,
        "return_tokens": True, "stream": True,
    }  # fmt: skip
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
    clock, index = note
    for line in connection.getresponse():
        if line.startswith(b"data: "):
            ids = json.loads(line[6:]).get("tokens", [])
            if len(clock.tokens[index]) < max_tokens:
                clock.note(index, ids)


def score(port: int, ids: list[int]) -> list[float]:
    """One request a position, asked for every token's logprob: the server says those of what it makes only."""
    logprobs: list[float] = []
    for i, token in enumerate(ids[1:]):
        body = {"prompt": ids[: i + 1], "n_predict": 1, "temperature": 0, "n_probs": VOCABULARY, "cache_prompt": True}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        of_first = json.load(connection.getresponse())["completion_probabilities"][0]["top_logprobs"]
        logprobs.append(next(entry["logprob"] for entry in of_first if entry["id"] == token))
        connection.close()
    return logprobs


def main() -> None:
    binary, model, threads, cache = sys.argv[1:5]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = start(binary, model, threads, port)
    try:
        wait_ready(port)

        def run(prompts: list[list[int]], max_tokens: int, clock: Clock) -> None:
            streams = [
                threading.Thread(
                    target=stream,
                    args=(port, prompt, max_tokens, (clock, i)),
                    kwargs={"is_cached": cache == "cached"},
                )
                for i, prompt in enumerate(prompts)
            ]
            for thread in streams:
                thread.start()
            for thread in streams:
                thread.join()

        serve(run, lambda ids: score(port, ids))
    finally:
        server.kill()


if __name__ == "__main__":
    main()
