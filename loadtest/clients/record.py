"""What clients did, kept: `results/clients.json`, and the table between two marks in docs/clients.md made from it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loadtest.clients.roster import ROSTER
from loadtest.clients.steps import Step
from loadtest.results import RESULTS, write_results

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
BEGIN, END = "<!-- written by make test-clients -->", "<!-- until here -->"


@dataclass(frozen=True, slots=True)
class Ran:
    """One client's session. `not_run` says why there are no steps."""

    name: str
    packages: tuple[str, ...]
    does: str
    steps: list[Step]
    seconds: float = 0.0
    not_run: str = ""

    def not_ok(self) -> list[Step]:
        return [step for step in self.steps if step.verdict != "ok"]

    def line(self) -> str:
        if self.not_run:
            return f"{self.name}: not run: {self.not_run}"
        return f"{self.name}: {len(self.steps) - len(self.not_ok())} of {len(self.steps)} steps, {self.seconds} s"


def read_record() -> list[Ran]:
    """The last of each client; none where there is no record yet."""
    path = RESULTS / "clients.json"
    if not path.exists():
        return []
    return [_ran(told) for told in json.loads(path.read_text())["clients"]]


def _ran(told: dict[str, Any]) -> Ran:
    steps = [Step(step["name"], step["verdict"], step["why"]) for step in told["steps"]]
    return Ran(told["name"], tuple(told["packages"]), told["does"], steps, told["seconds"], told["not_run"])


def write_record(before: Iterable[Ran], now: Iterable[Ran]) -> Path:
    """Who was not run now keeps what it did before; in the roster's order."""
    by_name = {ran.name: ran for ran in (*before, *now)}
    kept = [by_name[client.name] for client in ROSTER if client.name in by_name]
    told = [asdict(ran) | {"steps": [step._asdict() for step in ran.steps]} for ran in kept]
    return write_results("clients", {"clients": told})


def table(record: Iterable[Ran]) -> str:
    """A row a client: versions, what it was made to do, how many of its steps went well, and the others by name."""
    rows = ["| client | does | went well | else |", "|---|---|---|---|"]
    for ran in record:
        versions = ", ".join(f"`{package}`" for package in ran.packages)
        others = "; ".join(f"{step.name}: {_short(step)}" for step in ran.not_ok())
        went = "not run" if ran.not_run else f"{len(ran.steps) - len(ran.not_ok())} of {len(ran.steps)}"
        rows.append(f"| {versions} | {ran.does} | {went} | {ran.not_run or others} |")
    return "\n".join(rows)


def _short(step: Step) -> str:
    blame = "the small model" if step.verdict == "model" else "failed"
    return f"{blame} ({step.why.replace('|', ' ')[:120]})"


def write_table() -> None:
    """Raises ValueError where the page has lost its marks."""
    before, rest = PAGE.read_text().split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(read_record())}\n\n{END}{after}")
