"""Our engine without a server, on three questions: a burst of prompts beside running answers, a cached prefix, and what
a step costs beside the model.

    burst     8 answers run; 16 prompts of 1,500 tokens come at once: ITL of the 8 before and during, chunks and none
    prefix    TTFT of a 1,500-token prompt, cold, and with 95% of it cached
    overhead  64 answers run: time of a step outside the model's call
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections import defaultdict

import typer

from loadtest.race.prompts import Prompts
from loadtest.race.table import percentile
from loadtest.results import write_results
from shared.config import WorkerSettings
from shared.schemas import Prefix, Request, SamplingParams, TokensFrame
from shared.text.tokenizer import Tokenizer
from worker.backends.interface import Engine
from worker.composition import build_engine

BURST, BURST_TOKENS, DECODES, QUIET_STEPS = 16, 1500, 8, 150
_ids = itertools.count()


def add(engine: Engine, prompt: list[int], max_tokens: int) -> str:
    params = SamplingParams(max_tokens=max_tokens, seed=0, temperature=0.0, ignore_eos=True)
    request_id = f"r{next(_ids)}"
    engine.add(
        Request(request_id=request_id, model=engine.card.revision, prompt_ids=tuple(prompt), params=params), [Prefix()]
    )
    return request_id


def step(engine: Engine, times: dict[str, list[float]]) -> None:
    """One step; notes when each request's tokens were there."""
    outputs = engine.step()
    now = time.perf_counter()
    for output in outputs:
        count = sum(len(frame.token_ids) for frame in output.frames if isinstance(frame, TokensFrame))
        times[output.request_id] += [now] * count


def gaps_ms(times: dict[str, list[float]], ids: list[str], since: float, until: float) -> list[float]:
    return [
        (after - before) * 1000
        for request_id in ids
        for before, after in itertools.pairwise(times[request_id])
        if since < after <= until
    ]


def burst(engine: Engine, prompts: Prompts) -> dict[str, float]:
    """ITL of the running in quiet and during the burst, and the seconds until each of the burst had a token."""
    times: dict[str, list[float]] = defaultdict(list)
    running = [add(engine, prompt, 1200) for prompt in prompts.short(DECODES)]
    while not all(len(times[request_id]) > 20 for request_id in running):
        step(engine, times)
    quiet_from = time.perf_counter()
    for _ in range(QUIET_STEPS):
        step(engine, times)
    burst_from = time.perf_counter()
    arrived = [add(engine, prompt, 2) for prompt in prompts.cut(BURST, BURST_TOKENS)]
    while not all(times[request_id] for request_id in arrived):
        step(engine, times)
    until = time.perf_counter()
    engine.abort(running + arrived)
    quiet = gaps_ms(times, running, quiet_from, burst_from)
    loud = gaps_ms(times, running, burst_from, until)
    return {
        "quiet_itl_p50_ms": percentile(quiet, 0.5),
        "quiet_itl_p99_ms": percentile(quiet, 0.99),
        "burst_itl_p50_ms": percentile(loud, 0.5),
        "burst_itl_p99_ms": percentile(loud, 0.99),
        "ratio": percentile(loud, 0.99) / percentile(quiet, 0.99),
        "seconds": until - burst_from,
    }


def told(figures: dict[str, float]) -> str:
    quiet, loud = (
        f"{figures[f'{when}_itl_p50_ms']:.1f}/{figures[f'{when}_itl_p99_ms']:.1f}" for when in ("quiet", "burst")
    )
    return f"ITL p50/p99 {quiet} -> {loud} ms ({figures['ratio']:.1f}x), {figures['seconds']:.1f} s"


def ttft_ms(engine: Engine, prompt: list[int]) -> float:
    times: dict[str, list[float]] = defaultdict(list)
    started = time.perf_counter()
    request_id = add(engine, prompt, 1)
    while engine.has_work():
        step(engine, times)
    return (times[request_id][0] - started) * 1000


def prefix(engine: Engine, prompts: Prompts, rounds: int) -> tuple[float, float]:
    """TTFT in ms, medians: cold, and with 95% cached."""
    cold: list[float] = []
    warm: list[float] = []
    kept = BURST_TOKENS * 95 // 100
    made = prompts.cut(2 * rounds, BURST_TOKENS)
    for first, second in zip(made[:rounds], made[rounds:], strict=True):
        cold.append(ttft_ms(engine, first))
        warm.append(ttft_ms(engine, first[:kept] + second[kept:]))
    return statistics.median(cold), statistics.median(warm)


def overhead(engine: Engine, prompts: Prompts, running: int = 64) -> tuple[float, float]:
    """Of a step with so many decodes: microseconds a sequence beside the model's call, and their share of the step."""
    times: dict[str, list[float]] = defaultdict(list)
    ids = [add(engine, prompt, 400) for prompt in prompts.short(running)]
    while not all(times[request_id] for request_id in ids):
        step(engine, times)
    outside: list[float] = []
    total = 0.0
    for _ in range(100):
        started = time.perf_counter()
        engine.step()
        seconds = time.perf_counter() - started
        last = engine.load().last_step
        assert last is not None
        outside.append(seconds - last.execute_s)
        total += seconds
    engine.abort(ids)
    return statistics.median(outside) / running * 1e6, sum(outside) / total


def settings(model: str, threads: int, **others: object) -> WorkerSettings:
    return WorkerSettings.model_validate(
        {"model": model, "threads": threads, "max_num_seqs": 64, "backend": "native", **others}
    )


def main(model: str = "smollm2", threads: int = 2, rounds: int = 5) -> None:
    """Our engine alone: a burst beside running answers, a cached prefix, the cost of a step beside the model."""
    engine = build_engine(settings(model, threads))
    prompts = Prompts(Tokenizer.from_blob(engine.tokenizer_blob))
    rounds_of_bursts = [burst(engine, prompts) for _ in range(3)]
    chunked = sorted(rounds_of_bursts, key=lambda made: made["ratio"])[1]
    figures: dict[str, object] = {"burst": chunked, "burst_ratios": [made["ratio"] for made in rounds_of_bursts]}
    typer.echo(f"burst, chunks by cost, median of 3: {told(chunked)}")
    cold, warm = prefix(engine, prompts, rounds)
    figures["prefix"] = {"cold_ttft_ms": cold, "warm_ttft_ms": warm, "share": warm / cold}
    typer.echo(f"prefix, 95% cached: TTFT {cold:.0f} -> {warm:.0f} ms ({warm / cold:.1%})")
    micros, share = overhead(engine, prompts)
    figures["overhead"] = {"us_a_sequence": micros, "share_of_step": share}
    typer.echo(f"outside the model at 64 running: {micros:.1f} us a sequence, {share:.1%} of the step")
    engine.close()
    whole = build_engine(settings(model, threads, itl_target_ms=0, max_step_tokens=BURST_TOKENS * BURST))
    figures["unchunked"] = unchunked = burst(whole, prompts)
    whole.close()
    typer.echo(f"burst, chunking off: {told(unchunked)}")
    typer.echo(f"written to {write_results('engine_alone', figures)}")
