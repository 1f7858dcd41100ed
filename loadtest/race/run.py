"""The race: our server and engine against others, same weights and prompts, in turns in one run.

    short     32-token prompts, 64 tokens: decode speed
    long      512-token prompts, 32 tokens: TTFT, ITL
    shared    the same with their first 90% in common, warm: what a prefix cache is worth
    agreement the next token after each of many prefixes of a text, compared with fp32
    perplexity of a fixed text

All take turns in each round, so that noise hits all; a figure is the median of the rounds. The others wait idle. Who
fails, or does not answer in minutes, is out and said.
"""

from __future__ import annotations

import base64
import math
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from loadtest.race.field import Contestant, Entry, Run, ours, read_field
from loadtest.race.machine import describe, read_bandwidth_gb_s
from loadtest.race.prompts import Prompts
from loadtest.race.table import Precision, show
from loadtest.results import write_results
from shared.text.tokenizer import Tokenizer, decode_blob

SHORT_TOKENS, LONG_TOKENS = 64, 32
STREAMS = (1, 8, 32)
REFERENCE = "headrace, torch fp32"
PARAMETERS = 134_515_008  # of SmolLM2-135M: with `bits`, what a token reads at least


def our_entries(model: str, threads: int) -> list[Entry]:
    common: dict[str, object] = {
        "model": model, "threads": threads, "max_num_seqs": 64, "log_level": "warning", "backend": "native",
    }  # fmt: skip
    packaged = 5.74  # bits of a weight: 210 matrices in Q4_1, the embedding in Q8_0
    return [
        ours("headrace, served", packaged, served=True, settings=common),
        *(
            ours(f"headrace, {rounding}", packaged, served=False, settings={**common, "cpu_activations": rounding})
            for rounding in ("int8", "mixed", "int16")
        ),
        ours(REFERENCE, 32, served=False, settings={**common, "cpu_kernels": "torch"}),
    ]


class Field:
    """Who still races."""

    def __init__(self, entries: list[Entry], folder: Path) -> None:
        self.contestants: list[Contestant] = []
        for number, entry in enumerate(entries):
            try:
                self.contestants.append(Contestant(entry, folder / f"{number}.log"))
            except (RuntimeError, OSError) as error:
                typer.echo(f"{entry.name} does not race: {error}", err=True)
            else:
                typer.echo(f"{entry.name} is ready")

    def each(self, turn: Callable[[Contestant], None]) -> None:
        for contestant in list(self.contestants):
            try:
                turn(contestant)
            except RuntimeError as error:
                typer.echo(f"out of the race: {error}", err=True)
                self.contestants.remove(contestant)

    def stop(self) -> None:
        for contestant in self.contestants:
            contestant.stop()


def race(field: Field, prompts: Prompts, rounds: int, *, is_full: bool) -> dict[str, dict[str, list[Run]]]:
    """Runs by contestant and load ("short 8"). The first round warms up and does not count."""
    runs: dict[str, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))

    def warm_up(contestant: Contestant) -> None:
        for streams in STREAMS:
            contestant.run(prompts.short(streams), 4)

    def turn(contestant: Contestant) -> None:
        mine = runs[contestant.entry.name]
        for streams in STREAMS:
            mine[f"short {streams}"].append(contestant.run(prompts.short(streams), SHORT_TOKENS))
            if streams < STREAMS[-1] or is_full:
                mine[f"long {streams}"].append(contestant.run(prompts.long(streams), LONG_TOKENS))
                contestant.run(prompts.shared(1), 1)
                mine[f"shared {streams}"].append(contestant.run(prompts.shared(streams), LONG_TOKENS))
        fastest = mine[f"short {STREAMS[-1]}"][-1].tokens_per_s
        typer.echo(f"  {contestant.entry.name}: {fastest:.0f} tokens/s at {STREAMS[-1]}")

    field.each(warm_up)
    for number in range(rounds):
        typer.echo(f"round {number + 1}")
        field.each(turn)
    return runs


def precisions(field: Field, prompts: Prompts) -> dict[str, Precision]:
    """Of all that tell token ids or logprobs: agreement with the reference's next tokens, perplexity."""
    next_tokens: dict[str, list[int]] = {}
    perplexities: dict[str, float] = {}

    def ask(contestant: Contestant) -> None:
        name = contestant.entry.name
        made = [contestant.run([prefix], 1).tokens[0] for prefix in prompts.prefixes()]
        if all(made):
            next_tokens[name] = [ids[0] for ids in made]
        if logprobs := contestant.score(prompts.text()):
            perplexities[name] = math.exp(-statistics.mean(logprobs))

    field.each(ask)
    expected = next_tokens.get(REFERENCE, [])
    agreed = {
        name: statistics.mean(mine == theirs for mine, theirs in zip(made, expected, strict=True))
        for name, made in next_tokens.items()
        if expected
    }
    return {name: Precision(agreed.get(name), perplexities.get(name)) for name in {*next_tokens, *perplexities}}


def main(
    peers: Annotated[Path | None, typer.Option(help="TOML file that names the others: loadtest/race/field.py")] = None,
    rounds: int = 3,
    full: Annotated[bool, typer.Option(help="512-token prompts by 32 streams too: minutes a contestant")] = False,
    model: str = "smollm2",
    threads: int = 2,
    only: Annotated[str, typer.Option(help="contestants whose names have one of these in them: a,b")] = "",
) -> None:
    """Our server and engine against others, side by side."""
    entries = [*our_entries(model, threads), *(read_field(peers) if peers else [])]
    entries = [entry for entry in entries if any(part in entry.name for part in only.split(","))]
    with tempfile.TemporaryDirectory() as folder:
        field = Field(entries, Path(folder))
        blob = next((said["tokenizer"] for c in field.contestants if "tokenizer" in (said := c.greeting)), None)
        if blob is None:
            raise typer.BadParameter("one of our engines must race: it has the tokenizer", param_hint="--only")
        prompts = Prompts(Tokenizer.from_blob(decode_blob(base64.b64decode(blob))))
        runs = race(field, prompts, rounds, is_full=full)
        precise = precisions(field, prompts)
        field.stop()
    floor = read_bandwidth_gb_s(threads) * 1e9
    floors = {entry.name: floor / (entry.bits / 8 * PARAMETERS) for entry in entries}
    figures = show(runs, precise, floors)
    record = {"machine": describe(), "read_gb_s": round(floor / 1e9, 1), "rounds": rounds, **figures}
    typer.echo(f"memory is read at {floor / 1e9:.1f} GB/s here; written to {write_results('engine', record)}")
