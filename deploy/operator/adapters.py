"""`headrace adapters load | unload | list`: adapters of a worker's model, without a restart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from deploy.operator.session import AsJson, By, Redis, answer, ask, who
from deploy.operator.tables import clean, table
from shared.operations import adapters
from shared.operations.adapters import WorkersAdapter

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Adapters: models beside a worker's own.")

Worker = Annotated[str, typer.Argument(help="A worker's id, as `headrace workers` shows it.")]
Name = Annotated[str, typer.Argument(help="The model name that requests ask for.")]
Path = Annotated[str, typer.Argument(help="A PEFT folder, as the worker's machine names it.")]


@app.command(name="list")
def list_all(redis: Redis = None, as_json: AsJson = False) -> None:
    """What each worker has loaded, loads, or could not load."""
    answer(ask(redis, adapters.listed), _rows, as_json=as_json)


@app.command()
def load(worker: Worker, name: Name, path: Path, by: By = None, redis: Redis = None, as_json: AsJson = False) -> None:
    """Serve an adapter as a model of its own, beside what the worker runs. Waits for it; exit 1 when it is refused."""
    report = ask(redis, lambda desk: adapters.load(desk, worker, name, path, who(by)))
    answer(report, lambda done: _rows([done]), as_json=as_json)


@app.command()
def unload(worker: Worker, name: Name, by: By = None, redis: Redis = None, as_json: AsJson = False) -> None:
    """Take no more of the adapter's requests here, end or give back what runs, free its memory."""
    report = ask(redis, lambda desk: adapters.unload(desk, worker, name, who(by)))
    answer(report, lambda done: _rows([done]), as_json=as_json)


def _rows(found: Sequence[WorkersAdapter]) -> list[str]:
    rows = [
        (row.adapter.name, row.adapter.state, row.worker, row.adapter.revision, row.adapter.path, row.adapter.message)
        for row in found
    ]
    head = ("ADAPTER", "STATE", "WORKER", "REVISION", "PATH", "WHY")
    return table(head, *([clean(cell) for cell in row] for row in rows)) if rows else ["no worker has adapters"]
