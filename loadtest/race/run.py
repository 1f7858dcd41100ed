"""The race: our server and engine against others, same weights and prompts, in turns in one run.

    short     32-token prompts, 64 tokens: decode speed
    long      512-token prompts, 32 tokens: TTFT, ITL
    shared    the same with their first 90% in common, warm: what a prefix cache is worth
    agreement the next token after each of many prefixes of a text, compared with fp32

All take turns in each round, so that noise hits all; a figure is the median of the rounds. The others wait idle.
"""

from __future__ import annotations

import base64
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Annotated

import typer

from loadtest.race.field import Contestant, Entry, Run, ours, read_field
from loadtest.race.machine import read_bandwidth_gb_s
from loadtest.race.prompts import Prompts
from loadtest.race.table import show
from loadtest.results import write_results
from shared.text.tokenizer import Tokenizer, decode_blob

SHORT_TOKENS, LONG_TOKENS = 64, 32
STREAMS = (1, 8, 32)


def our_entries(model: str, threads: int) -> list[Entry]:
    common: dict[str, object] = {
        "model": model, "threads": threads, "max_num_seqs": 64, "log_level": "warning", "backend": "native",
    }  # fmt: skip
    return [
        ours("headrace, served", 5, served=True, settings=common),
        ours("headrace, engine", 5, served=False, settings=common),
        ours("headrace, torch fp32", 32, served=False, settings={**common, "cpu_kernels": "torch"}),
    ]


def start(entries: list[Entry], folder: Path) -> list[Contestant]:
    """Those that do; of the others it is said why not."""
    started: list[Contestant] = []
    for number, entry in enumerate(entries):
        try:
            started.append(Contestant(entry, folder / f"{number}.log"))
        except (RuntimeError, OSError) as error:
            typer.echo(f"{entry.name} does not race: {error}", err=True)
        else:
            typer.echo(f"{entry.name} is ready")
    return started


def race(
    contestants: list[Contestant], prompts: Prompts, rounds: int, *, is_full: bool
) -> dict[str, dict[str, list[Run]]]:
    """Runs by contestant and load ("short 8"). The first round warms up and does not count."""
    runs: dict[str, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for number in range(rounds + 1):
        for contestant in contestants:
            for streams in STREAMS:
                loads = {
                    f"short {streams}": (prompts.short(streams), SHORT_TOKENS),
                    f"long {streams}": (prompts.long(streams), LONG_TOKENS),
                    f"shared {streams}": (prompts.shared(streams), LONG_TOKENS),
                }
                if number == 0:
                    contestant.run(prompts.short(streams), 4)
                    continue
                for load, (ids, max_tokens) in loads.items():
                    if streams == STREAMS[-1] and not load.startswith("short") and not is_full:
                        continue
                    if load.startswith("shared"):
                        contestant.run(prompts.shared(1), 1)
                    runs[contestant.entry.name][load].append(contestant.run(ids, max_tokens))
            short = runs[contestant.entry.name].get(f"short {STREAMS[-1]}")
            if short:
                typer.echo(f"  round {number}: {contestant.entry.name}: {short[-1].tokens_per_s:.0f} tokens/s at 32")
    return runs


def agreement(contestants: list[Contestant], prompts: Prompts, reference: str) -> dict[str, float]:
    """Share of the prefixes after which the next token is the reference's."""
    next_tokens = {
        contestant.entry.name: [contestant.run([prefix], 1).tokens[0] for prefix in prompts.prefixes()]
        for contestant in contestants
        if "served" not in contestant.entry.name
    }
    if reference not in next_tokens:
        return {}
    expected = next_tokens[reference]
    return {
        name: statistics.mean(mine == theirs for mine, theirs in zip(made, expected, strict=True))
        for name, made in next_tokens.items()
    }


def main(
    peers: Annotated[Path | None, typer.Option(help="TOML file that names the others: loadtest/race/field.py")] = None,
    rounds: int = 3,
    full: Annotated[bool, typer.Option(help="512-token prompts by 32 streams too: minutes a contestant")] = False,
    model: str = "smollm2",
    threads: int = 2,
    only: Annotated[str, typer.Option(help="contestants whose names have this in them")] = "",
) -> None:
    """Our server and engine against others, side by side."""
    entries = [*our_entries(model, threads), *(read_field(peers) if peers else [])]
    with tempfile.TemporaryDirectory() as folder:
        contestants = start([entry for entry in entries if only in entry.name], Path(folder))
        blob = next(said["tokenizer"] for c in contestants if "tokenizer" in (said := c.greeting))
        prompts = Prompts(Tokenizer.from_blob(decode_blob(base64.b64decode(blob))))
        runs = race(contestants, prompts, rounds, is_full=full)
        agreed = agreement(contestants, prompts, "headrace, torch fp32")
        for contestant in contestants:
            contestant.stop()
    bandwidth = read_bandwidth_gb_s(threads)
    figures = show(runs, agreed, {entry.name: entry.bits for entry in entries}, bandwidth)
    typer.echo(f"written to {write_results('engine', figures)}")
