"""How a contestant is spoken to: one JSON line a job, one JSON line a reply. Standard library only.

A contestant runs in an environment of its own, so nothing of ours but this is imported there. A job is
{"prompts": [[id, ...], ...], "max_tokens": n}: all of them at once, greedy, to their last token, however the text
would end. The reply is {"times": [[s, ...], ...], "tokens": [[id, ...], ...]}: for each prompt when each of its tokens
was there, in seconds after the job was read. `tokens` is empty where a contestant does not tell them.

A job {"score": [id, ...]} is answered with {"logprobs": [nats, ...]}: of each token after the first, given those before
it; null where a contestant cannot say.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Clock:
    """Notes tokens as they come."""

    num_prompts: int
    started: float = field(default_factory=time.perf_counter)
    times: list[list[float]] = field(init=False)
    tokens: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.times = [[] for _ in range(self.num_prompts)]
        self.tokens = [[] for _ in range(self.num_prompts)]

    def note(self, prompt: int, token_ids: list[int]) -> None:
        now = time.perf_counter() - self.started
        self.times[prompt] += [now] * len(token_ids)
        self.tokens[prompt] += token_ids


def serve(
    run: Callable[[list[list[int]], int, Clock], None],
    score: Callable[[list[int]], list[float]] | None = None,
    **greeting: str,
) -> None:
    """Says the greeting, then answers jobs from stdin until it ends. What libraries print goes to stderr."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    replies.write(json.dumps(greeting) + "\n")
    for line in sys.stdin:
        job = json.loads(line)
        if "score" in job:
            replies.write(json.dumps({"logprobs": score and score(job["score"])}) + "\n")
            continue
        clock = Clock(len(job["prompts"]))
        run(job["prompts"], job["max_tokens"], clock)
        replies.write(json.dumps({"times": clock.times, "tokens": clock.tokens}) + "\n")
