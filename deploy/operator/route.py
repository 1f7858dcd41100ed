"""`headrace route list | show | set | drop`: what the names that clients ask for lead to (docs/routes.md).

`set` writes the whole entry. Gateways read routes again every HEADRACE_MODEL_POLL_S.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from deploy.operator import tables
from deploy.operator.session import AsJson, By, Redis, answer, ask, who
from deploy.terminal import refusals
from shared.errors import InvalidRequest
from shared.operations import routing
from shared.operations.routing import RouteRow, Routes

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Routes: aliases, weights, fallbacks, bounds.")

Name = Annotated[str, typer.Argument(help="What clients ask for as `model`; or a model's own name, for its bounds.")]


@app.command(name="list")
def list_routes(redis: Redis = None, as_json: AsJson = False) -> None:
    """Every route, and the models it leads to."""
    answer(ask(redis, routing.routes), _all, as_json=as_json)


@app.command()
def show(name: Name, redis: Redis = None, as_json: AsJson = False) -> None:
    """One route, and who changed it last."""
    answer(ask(redis, lambda desk: routing.route(desk, name)), lambda row: _all(Routes([row], [])), as_json=as_json)


@app.command(name="set")
def set_route(  # noqa: PLR0913  what can be said of a route
    name: Name,
    target: Annotated[
        list[str] | None,
        typer.Option(help="MODEL, or MODEL=WEIGHT, repeated: a name, a revision or a route; none: the model NAME."),
    ] = None,
    fallback: Annotated[
        list[str] | None,
        typer.Option(help="MODEL for when the target has no worker or no room; repeated, in order."),
    ] = None,
    bound: Annotated[
        list[str] | None,
        typer.Option(help="NAME=NUMBER, repeated: max_waiting, max_waiting_tokens, max_waiting_bytes of its queue."),
    ] = None,
    class_weight: Annotated[
        list[str] | None, typer.Option(help="CLASS=WEIGHT, repeated: priority, default, flex, batch.")
    ] = None,
    by: By = None,
    redis: Redis = None,
    as_json: AsJson = False,
) -> None:
    """Write a route, in the place of what it was."""
    fields: dict[str, Any] = {"fallbacks": fallback or []}
    with refusals():
        fields["targets"] = dict(_weighted(text) for text in target or [])
        fields |= dict(_number("--bound", text) for text in bound or [])
        fields["class_weights"] = dict(_number("--class-weight", text) for text in class_weight or [])
    report = ask(redis, lambda desk: routing.set_route(desk, name, json.dumps(fields).encode(), who(by)))
    answer(report, lambda row: _all(Routes([row], [])), as_json=as_json)


@app.command()
def drop(name: Name, by: By = None, redis: Redis = None, as_json: AsJson = False) -> None:
    """Take a route away; a model of that name is asked again as it is."""
    report = ask(redis, lambda desk: routing.drop_route(desk, name, who(by)))
    answer(report, lambda done: [f"{done.name} is dropped"], as_json=as_json)


def _weighted(text: str) -> tuple[str, float]:
    """A name with `=` in it needs a weight behind it."""
    return _number("--target", text) if "=" in text else (text, 1.0)


def _number(option: str, text: str) -> tuple[str, float]:
    name, _, number = text.rpartition("=")
    try:
        found = float(number)
    except ValueError:
        found = None
    if not name or found is None or found != found or abs(found) == float("inf"):
        raise InvalidRequest(f"{option} {text}: must be NAME=NUMBER", param=option)
    return name, int(found) if found.is_integer() else found


def _all(found: Routes) -> list[str]:
    rows = [cells for row in found.routes for cells in _cells(row)]
    head = ("ROUTE", "SHARE", "MODEL", "FALLBACKS", "BOUNDS", "CHANGED")
    lines = tables.table(head, *rows) if rows else ["there are no routes"]
    lines += [
        f"{tables.clean(row.name)}: no worker has registered {tables.clean(', '.join(row.unregistered))}"
        for row in found.routes
        if row.unregistered
    ]
    return lines + [f"left out: {tables.clean(fault)}" for fault in found.faults]


def _cells(row: RouteRow) -> list[tuple[object, ...]]:
    """A line an end."""
    route, first = row.route, True
    bounds = {name: getattr(route, name) for name in ("max_waiting", "max_waiting_tokens", "max_waiting_bytes")}
    told = [f"{name} {value}" for name, value in bounds.items() if value]
    told += [f"{name} {weight:g}" for name, weight in route.class_weights.items()]
    when = f"{tables.clock(route.at_ms)} {route.by}" if route.at_ms else ""
    rows: list[tuple[object, ...]] = []
    for model, share in row.ends.items():
        about = (", ".join(route.fallbacks), ", ".join(told), when) if first else ("", "", "")
        rows.append((row.name if first else "", f"{share:.1%}", model, *about))
        first = False
    return rows
