"""The steps of a session: what a client did against the running server, a line of JSON each on stdout.

A session runs in its client's own environment, so this module needs the standard library only. Invariant: a step that
fails does not end the session; what it raised is its reason. `ModelUnable` is raised where the wire did what it must
and a small model did not follow its instructions.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Literal, NamedTuple

Verdict = Literal["ok", "failed", "model"]
MAX_REASON = 400


class ModelUnable(Exception):
    """The model could not do what was asked of it; the protocol was kept."""


class Step(NamedTuple):
    """`why` is empty where the verdict is `ok`."""

    name: str
    verdict: Verdict
    why: str = ""


class Server(NamedTuple):
    """What a session is told, in this order, as arguments. `real` and `simulated` are names of models."""

    base_url: str
    real: str
    simulated: str

    @property
    def v1(self) -> str:
        return f"{self.base_url}/v1"


def server() -> Server:
    return Server(*sys.argv[1:4])


@contextmanager
def step(name: str) -> Generator[None]:
    """What runs inside is one step."""
    try:
        yield
    except ModelUnable as error:
        tell(Step(name, "model", str(error)))
    except (Exception, SystemExit) as error:
        tell(Step(name, "failed", f"{type(error).__name__}: {error}"))
    else:
        tell(Step(name, "ok"))


def expect(condition: object, why: str) -> None:
    """Raises AssertionError with `why` unless it holds; unlike a bare assert, it says what was seen."""
    if not condition:
        raise AssertionError(why)


def tell(done: Step) -> None:
    """To the runner, as one line."""
    why = " ".join(done.why.split())[:MAX_REASON]
    print(json.dumps({"step": done.name, "verdict": done.verdict, "why": why}), flush=True)


def read_steps(output: str) -> list[Step]:
    """Of a session's stdout; whatever else stands there is passed over."""
    steps: list[Step] = []
    for line in output.splitlines():
        _, mark, rest = line.partition('{"step": ')
        if mark:
            told = json.loads(mark + rest)
            steps.append(Step(told["step"], told["verdict"], told["why"]))
    return steps
