"""`python -m loadtest gpu`: parity and speed of the GPU path in one run of under six minutes, as a table and as JSON.

Makes its own weights on the device. Parity comes first; what the time no longer allows is left out and named. With
`--device cpu --tiny` the script itself is tried: the runner's logic with plain kernels, and no figure worth keeping.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from loadtest.results import write_results

if TYPE_CHECKING:
    from loadtest.gpu.parity import Check
    from loadtest.gpu.speed import Figure


class Run:
    """What was measured, and what there was no time for."""

    def __init__(self, budget_s: float) -> None:
        self._began, self._budget_s = time.perf_counter(), budget_s
        self.checks: list[Check] = []
        self.figures: list[Figure] = []
        self.left_out: list[str] = []

    def part(self, name: str, measure: Callable[[], list[Check] | list[Figure]], least_s: float) -> None:
        """`least_s`: what it is not begun with less than."""
        from loadtest.gpu.parity import Check

        left_s = self._budget_s - (time.perf_counter() - self._began)
        if left_s < least_s:
            self.left_out.append(name)
            typer.echo(f"{name}: left out, {left_s:.0f} s are left")
            return
        began = time.perf_counter()
        for made in measure():
            if isinstance(made, Check):
                self.checks.append(made)
            else:
                self.figures.append(made)
        typer.echo(f"{name}: {time.perf_counter() - began:.1f} s")
        self._free_memory()

    @staticmethod
    def _free_memory() -> None:
        import torch

        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    @property
    def is_ok(self) -> bool:
        return all(check.is_ok for check in self.checks) and not self.left_out


def measure(device_name: str, *, tiny: bool, budget_s: float) -> Run:
    import torch

    from loadtest.gpu import parity, speed
    from loadtest.gpu.weights import FAMILIES, LLAMA_1B, RandomCheckpoint, config_of

    device = torch.device(device_name)
    place = device, torch.float32 if device.type == "cpu" else torch.bfloat16
    checkpoint = RandomCheckpoint(config_of(FAMILIES["llama"] if tiny else LLAMA_1B), device=device, gain=1.0)
    lengths, short = ((40, 17), (70, 17, 5)) if tiny else ((700, 300, 64, 17), parity.LENGTHS)
    sizes = speed.Sizes()
    if tiny:
        sizes = speed.Sizes(decodes=(1, 3), context=32, prompt_tokens=48, num_prompts=2, max_steps=1, max_seconds=0.1)
    run = Run(budget_s)
    run.part("tokens", lambda: parity.choices(device, checkpoint.config.vocab_size), 5)
    run.part("families", lambda: parity.families(device, short), 5 if tiny else 60)
    run.part("invariance", lambda: parity.invariance(checkpoint, place, short), 20)
    run.part("one model", lambda: parity.one_model(checkpoint, device, lengths), 40)
    for path in ("graphs", "eager", "deterministic", "sdpa"):
        run.part(f"speed, {path}", lambda path=path: speed.measure(path, checkpoint, place, sizes), 20)
    return run


def main(
    device: str = "cuda",
    tiny: Annotated[bool, typer.Option(help="models of a few thousand weights: tries the script")] = False,
    budget_s: Annotated[float, typer.Option(help="what is not begun by then is left out")] = 330.0,
    output: Annotated[Path | None, typer.Option(help="where the JSON goes, instead of loadtest/results")] = None,
) -> None:
    """Parity and speed of the GPU path, under six minutes."""
    run = measure(device, tiny=tiny, budget_s=budget_s)
    show(run)
    figures = {
        "device": device_words(device),
        "is_ok": run.is_ok,
        "left_out": run.left_out,
        "checks": [{**asdict(check), "is_ok": check.is_ok} for check in run.checks],
        "speed": [asdict(figure) for figure in run.figures],
    }
    if output is not None:
        output.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2) + b"\n")
    elif not tiny:
        typer.echo(f"written to {write_results('gpu', figures)}")
    raise typer.Exit(0 if run.is_ok else 1)


def show(run: Run) -> None:
    typer.echo(f"\n{'check':<76} {'measured':>10} {'limit':>10}")
    for check in run.checks:
        limit = "-" if check.limit is None else f"{check.limit:.2e}"
        typer.echo(f"{check.name:<76} {check.measured:>10.2e} {limit:>10}{'' if check.is_ok else '  FAILED'}")
    typer.echo(f"\n{'path':<14} {'load':<18} {'step ms':>9} {'tokens/s':>11} {'of floor':>9}")
    for figure in run.figures:
        share = "-" if figure.floor_share is None else f"{figure.floor_share:.0%}"
        typer.echo(
            f"{figure.path:<14} {figure.load:<18} {figure.step_ms:>9.3f} {figure.tokens_per_s:>11,.0f} {share:>9}"
        )
    for name in run.left_out:
        typer.echo(f"left out for want of time: {name}")


def device_words(device: str) -> str:
    import torch

    words = torch.cuda.get_device_name(device) if device.startswith("cuda") else "a CPU, with plain kernels"
    return f"{words}, PyTorch {torch.__version__}"


if __name__ == "__main__":  # for a machine that has PyTorch and little else
    typer.run(main)
