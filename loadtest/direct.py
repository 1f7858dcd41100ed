"""The engine alone: no HTTP, no Redis, no asyncio. The floor that serving is compared with.

Run as a process of its own, since a server has a process of its own too. Reads one JSON line a run from stdin,
{"prompts": [[id, ...], ...], "max_tokens": n}, and writes {"seconds", "tokens"} for each.
"""

from __future__ import annotations

import json
import sys
import time

from shared.config import WorkerSettings, load
from shared.schemas import Prefix, Request, SamplingParams
from worker.backends.interface import Engine
from worker.composition import build_engine


def run(engine: Engine, prompts: list[list[int]], max_tokens: int, number: int) -> dict[str, float]:
    """All prompts at once, greedy, to their last token."""
    params = SamplingParams(max_tokens=max_tokens, seed=0, temperature=0.0, ignore_eos=True)
    started = time.perf_counter()
    for i, prompt in enumerate(prompts):
        request = Request(
            request_id=f"{number}-{i}", model=engine.card.revision, prompt_ids=tuple(prompt), params=params
        )
        engine.add(request, [Prefix()])
    tokens = 0
    while engine.has_work():
        tokens += sum(output.num_tokens for output in engine.step())
    return {"seconds": time.perf_counter() - started, "tokens": tokens}


def main() -> None:
    engine = build_engine(load(WorkerSettings))
    print(json.dumps({"model": engine.card.revision}), flush=True)
    for number, line in enumerate(sys.stdin):
        job = json.loads(line)
        print(json.dumps(run(engine, job["prompts"], job["max_tokens"], number)), flush=True)
    engine.close()


if __name__ == "__main__":
    main()
