"""A few requests of our own through the real engine: kernels, threads, graphs and compiled code are hot after them.

They go in as any share's do, at growing batch sizes, and never reach Redis or what is counted of users; their KV blocks
and what the prefix cache knows of them are gone afterwards. The same is the probe of a worker that kept failing: it is
good when requests end, and none of them for a fault of the engine. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

from shared.schemas import EndFrame, ModelCard, Outcome, Prefix, Request, SamplingParams
from worker.engine.outputs import StepOutput
from worker.shares import Share, Shares
from worker.telemetry import Telemetry

_SIZES = (1, 4, 16)
_MAX_TOKENS = 3
_PROMPT_TOKENS = 8
_LONG_PROMPT_TOKENS = 64
_TENANT = "warm-up"


@dataclass(frozen=True, slots=True)
class Probe:
    """`fault`: what was wrong with the engine, '' for nothing. `is_whole`: it was not cut short by its time."""

    num_ended: int
    fault: str
    is_whole: bool
    seconds: float

    @property
    def is_good(self) -> bool:
        return self.num_ended > 0 and not self.fault


class _Round:
    """Requests of one size, until all have ended."""

    def __init__(self, requests: list[Request]) -> None:
        self.left = {request.request_id for request in requests}
        self.num_ended = 0
        self.fault = ""
        self.is_over = asyncio.Event()

    def hear(self, outputs: list[StepOutput]) -> None:
        for output in outputs:
            if output.outcome is None:
                continue
            self.left.discard(output.request_id)
            self.num_ended += 1
            end = output.frames[-1]
            if output.outcome is Outcome.FAILED and isinstance(end, EndFrame) and end.error:
                self.fault = end.error.message
        if not self.left:
            self.is_over.set()


async def warm_up(
    shares: Shares, card: ModelCard, telemetry: Telemetry, *, max_num_seqs: int, within_s: float
) -> Probe:
    """At most `within_s` seconds, of which a step under way may add its own. Raises what breaks the engine."""
    started = time.monotonic()
    share = shares.open()
    telemetry.is_muted = True
    num_ended, fault, is_whole = 0, "", True
    try:
        for requests in _rounds(card, max_num_seqs):
            left_s = within_s - (time.monotonic() - started)
            done = _Round(requests)
            is_whole = await _run(shares, share, requests, done, left_s)
            num_ended, fault = num_ended + done.num_ended, done.fault
            if fault or not is_whole:
                break
        if shares.thread.stalled_s() < max(1.0, within_s):
            await asyncio.wait_for(shares.thread.forget_prefixes(), max(1.0, within_s))
    except TimeoutError:
        is_whole = False
    finally:
        share.close()
        telemetry.is_muted = False
    return Probe(num_ended, fault, is_whole, time.monotonic() - started)


async def _run(shares: Shares, share: Share, requests: list[Request], done: _Round, left_s: float) -> bool:
    """False: time was up first, and what was left is aborted."""
    share.on_outputs = done.hear
    for request in requests:
        share.add(request, [Prefix()])
    over = asyncio.create_task(done.is_over.wait())
    await asyncio.wait((over, shares.thread.stopped), timeout=max(0.0, left_s), return_when=asyncio.FIRST_COMPLETED)
    over.cancel()
    if shares.thread.stopped.done():
        shares.thread.stopped.result()
    share.abort(list(done.left))
    return not done.left


def _rounds(card: ModelCard, max_num_seqs: int) -> Iterator[list[Request]]:
    """One long prompt, then prompts side by side. Their tokens are drawn, but always the same."""
    drawn = random.Random(0)
    longest = max(1, min(card.context_length, card.max_request_tokens) - _MAX_TOKENS)
    sizes = [size for size in _SIZES if size <= max_num_seqs]
    for number, (count, length) in enumerate([(1, _LONG_PROMPT_TOKENS), *((size, _PROMPT_TOKENS) for size in sizes)]):
        lengths = [min(longest, length)] * count
        yield [_request(card, f"warm-up-{number}-{i}", drawn, lengths[i], i) for i in range(count)]


def _request(card: ModelCard, name: str, drawn: random.Random, length: int, seed: int) -> Request:
    """Every other one is sampled, so that both ways to choose are hot."""
    prompt = [drawn.randrange(card.vocab_size) for _ in range(length)]
    params = SamplingParams(
        max_tokens=_MAX_TOKENS, seed=seed, temperature=float(seed % 2), top_p=0.9 if seed % 2 else 1.0, ignore_eos=True
    )
    return Request(request_id=name, model=card.revision, prompt_ids=tuple(prompt), params=params, tenant=_TENANT)
