"""`headrace queue | scaling | request | workers | drain | pause | resume | cancel | fsck`: an operator at a terminal.

Exit codes: 0 done or shown, 1 not found, refused, Redis away, or (fsck) books that do not balance, 2 a wrong setting
or line. `headrace dead` and `headrace route` are in dead.py and route.py.
"""

from __future__ import annotations

from typing import Annotated

import typer

from deploy.operator import adapters, dead, route, tables
from deploy.operator.session import AsJson, By, Redis, Why, answer, ask, who
from shared.operations import reports

app = typer.Typer(add_completion=False)
app.add_typer(dead.app, name="dead")
app.add_typer(route.app, name="route")
app.add_typer(adapters.app, name="adapters")

SomeModel = Annotated[str, typer.Argument(help="A model name or one of its revisions; none: all.")]
Model = Annotated[str, typer.Argument(help="A model name (all its revisions) or one revision.")]
RequestId = Annotated[str, typer.Argument(help="As in the x-request-id header.")]


@app.command()
def queue(model: SomeModel = "", redis: Redis = None, as_json: AsJson = False) -> None:
    """Who waits, how old the oldest is, who runs, by class and tenant; which models are paused."""
    answer(ask(redis, lambda desk: reports.queue(desk, model)), tables.queue, as_json=as_json)


@app.command()
def scaling(model: SomeModel = "", redis: Redis = None, as_json: AsJson = False) -> None:
    """How many workers each model wants, and what that follows from."""
    answer(ask(redis, lambda desk: reports.scaling(desk, model)), tables.scaling, as_json=as_json)


@app.command()
def request(request_id: RequestId, redis: Redis = None, as_json: AsJson = False) -> None:
    """What happened to one request: each step, the time in it, its workers."""
    answer(ask(redis, lambda desk: reports.request(desk, request_id)), tables.request, as_json=as_json)


@app.command()
def workers(
    worker: Annotated[str, typer.Argument(help="What this one holds, and for how long.")] = "",
    redis: Redis = None,
    as_json: AsJson = False,
) -> None:
    """Which workers and gateways live, how long their leases last; or what one worker holds."""
    if worker:
        return answer(ask(redis, lambda desk: reports.worker(desk, worker)), tables.held, as_json=as_json)
    answer(ask(redis, reports.workers), tables.workers, as_json=as_json)


@app.command()
def drain(
    worker: Annotated[str, typer.Argument(help="A worker's id, as `headrace workers` shows it.")],
    now: Annotated[bool, typer.Option("--now", help="Give back at once what runs; others continue it.")] = False,
    by: By = None,
    redis: Redis = None,
    as_json: AsJson = False,
) -> None:
    """Send a worker away: it takes nothing more, finishes what it runs (or gives it back), and exits."""
    report = ask(redis, lambda desk: reports.drain(desk, worker, who(by), is_now=now))
    answer(report, lambda done: [f"{done.worker} was told; it hears it within a heartbeat"], as_json=as_json)


@app.command()
def pause(model: Model, why: Why = "", by: By = None, redis: Redis = None, as_json: AsJson = False) -> None:
    """Nothing of the model is taken any more. Running requests go on, new ones wait, deadlines pass."""
    report = ask(redis, lambda desk: reports.pause(desk, model, who(by), why))
    answer(report, lambda done: [_paused(row) for row in done], as_json=as_json)


@app.command()
def resume(model: Model, by: By = None, redis: Redis = None, as_json: AsJson = False) -> None:
    """The model's work is taken again."""
    report = ask(redis, lambda desk: reports.resume(desk, model, who(by)))
    answer(report, lambda done: [f"{m} is resumed" for m in done] or ["it was not paused"], as_json=as_json)


@app.command()
def cancel(request_id: RequestId, by: By = None, redis: Redis = None, as_json: AsJson = False) -> None:
    """End a request now; its client gets the error request_cancelled. Exit 1 when it had ended otherwise before."""
    report = ask(redis, lambda desk: reports.cancel(desk, request_id, who(by)))
    answer(report, lambda done: [f"{done.request_id} is {done.state}"], as_json=as_json)
    if report.data.state != "cancelled":
        raise typer.Exit(1)


@app.command()
def fsck(model: SomeModel = "", redis: Redis = None, as_json: AsJson = False) -> None:
    """Hold the books against each other. While requests move, sums may differ for a moment: repeat it."""
    report = ask(redis, lambda desk: reports.fsck(desk, model))
    answer(report, tables.ledgers, as_json=as_json)
    if any(ledger.problems for ledger in report.data):
        raise typer.Exit(1)


def _paused(row: reports.PausedModel) -> str:
    if row.is_new:
        return f"{row.model} is paused"
    return f"{row.model} was paused already, by {row.paused.by} since {tables.clock(row.paused.since_ms)}"
