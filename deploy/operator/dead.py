"""`headrace dead list | show | retry | drop`: requests that took their workers down, kept for a day.

A dead request has ended and its client was told, so `retry` runs it again as a new request under a new id, which
nobody listens to.
"""

from __future__ import annotations

from typing import Annotated

import typer

from deploy.operator import tables
from deploy.operator.session import AsJson, By, Redis, Why, answer, ask, who
from shared.operations import reports
from shared.operations.reports import Report

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Dead letters: list, show, retry, drop.")

RequestId = Annotated[str, typer.Argument(help="The dead request's id.")]


@app.command(name="list")
def list_letters(
    model: Annotated[str, typer.Argument(help="A model name or revision; none: all.")] = "",
    count: Annotated[int, typer.Option(min=1, max=1000, help="How many, the newest first.")] = 100,
    redis: Redis = None,
    as_json: AsJson = False,
) -> None:
    """Which requests were given up, and the last worker each took down."""
    answer(ask(redis, lambda desk: reports.dead_letters(desk, model, count)), tables.letters, as_json=as_json)


@app.command()
def show(request_id: RequestId, redis: Redis = None, as_json: AsJson = False) -> None:
    """What was asked (without its text), and its way to death."""
    answer(ask(redis, lambda desk: reports.dead_letter(desk, request_id)), tables.dead_request, as_json=as_json)


@app.command()
def retry(
    which: Annotated[str, typer.Argument(help="The dead request's id; with --all a model, none: all models.")] = "",
    retries_all: Annotated[bool, typer.Option("--all", help="All letters, the oldest first.")] = False,
    count: Annotated[int, typer.Option(min=1, max=1000, help="With --all: at most so many.")] = 1000,
    by: By = None,
    redis: Redis = None,
    as_json: AsJson = False,
) -> None:
    """Run it again under a new id, once however often this is repeated; the letter goes."""
    if retries_all:
        return _retry_all(ask(redis, lambda desk: reports.retry_all(desk, which, who(by), count)), as_json=as_json)
    if not which:
        raise typer.BadParameter("name a dead request, or say --all", param_hint="WHICH")
    report = ask(redis, lambda desk: reports.retry(desk, which, who(by)))
    answer(report, lambda done: [f"{done.request_id} runs again as {done.retried_as}"], as_json=as_json)


@app.command()
def drop(request_id: RequestId, why: Why = "", by: By = None, redis: Redis = None, as_json: AsJson = False) -> None:
    """Throw the letter away, with what was asked."""
    report = ask(redis, lambda desk: reports.drop(desk, request_id, who(by), why))
    answer(report, lambda done: [f"{done.request_id} is dropped"], as_json=as_json)


def _retry_all(report: Report[reports.AllRetried], *, as_json: bool) -> None:
    """Exit 1 when some could not be, or the queue had no room for all."""
    answer(report, tables.all_retried, as_json=as_json)
    if report.data.failed or report.data.stopped:
        raise typer.Exit(1)
