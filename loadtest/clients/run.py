"""`python -m loadtest clients` (`make test-clients`): clients of OpenAI's API, unmodified, against our own server.

One gateway serves two models by two workers: the packaged one, where what is said matters, and the simulated one, where
it does not; a client that names no model is served the packaged one alone. Each is run in an environment of its own, as
its users run it. What it did is kept in `results/clients.json`, and in the table of docs/clients.md.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from loadtest.clients.environments import CannotInstall, Environment, node_environment, python_environment
from loadtest.clients.record import Ran, read_record, write_record, write_table
from loadtest.clients.roster import ROSTER, Client
from loadtest.clients.steps import Step, read_steps
from loadtest.stack import Stack, child_environment

ROOT = Path(__file__).parents[2]
CACHE = Path.home() / ".cache" / "headrace" / "clients"
_FOLDERS = re.compile(r"(?<![:/\w])(/[^\s/\"]+){3,}/")  # of this machine: no reason for anything
REAL, SIMULATED = "smollm2-135m-instruct", "simulated"


_ENV = {"max_num_seqs": 16, "log_level": "warning"}


class TwoModels(Stack):
    """`worker0` serves the packaged model, `worker1` the simulated one."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, num_workers=2, env=_ENV)

    def settings_of(self, name: str) -> dict[str, object]:
        return {"backend": "simulated", "sim_step_us": 2000} if name == "worker1" else {}


def _stack(directory: Path, *, one_model: bool) -> Stack:
    return Stack(directory, env=_ENV) if one_model else TwoModels(directory)


def environment_of(client: Client, cache: Path) -> Environment:
    return (python_environment if client.installer == "uv" else node_environment)(cache, client.packages)


def command_of(client: Client, environment: Environment) -> list[str]:
    """A script is put beside the packages it imports: node looks for them there."""
    if not client.session.endswith(".mjs"):
        interpreter = environment.interpreter if client.installer == "uv" else sys.executable
        return [interpreter, "-m", client.session]
    for name in (client.session, "steps.mjs"):
        shutil.copy(Path(__file__).parent / "node" / name, environment.folder / name)
    return [environment.interpreter, str(environment.folder / client.session)]


def run_session(client: Client, base_url: str, cache: Path) -> Ran:
    """Never raises for what a client does: it is what is recorded."""
    began = time.monotonic()
    try:
        environment = environment_of(client, cache)
    except CannotInstall as error:
        return Ran(client.name, client.packages, client.does, [], not_run=str(error))
    with tempfile.TemporaryDirectory(prefix="headrace-client-") as work:
        command = [*command_of(client, environment), base_url, REAL, SIMULATED, str(environment.folder)]
        env = child_environment({}) | {
            "PYTHONPATH": str(ROOT), "HOME": work, "OPENAI_BASE_URL": f"{base_url}/v1", "OPENAI_API_KEY": "unused",
            "HF_HUB_OFFLINE": "1", "NO_PROXY": "127.0.0.1", "PYTHONWARNINGS": "ignore",
        }  # fmt: skip
        steps = _steps(command, env, Path(work), client.timeout_s)
    return Ran(client.name, client.packages, client.does, steps, round(time.monotonic() - began, 1))


def _steps(command: list[str], env: dict[str, str], work: Path, timeout_s: float) -> list[Step]:
    """Those of the session, and one more where it did not end by itself and well."""
    with (work / "stdout").open("w+") as stdout, (work / "stderr").open("w+") as stderr:
        process = subprocess.Popen(command, env=env, cwd=work, stdout=stdout, stderr=stderr, stdin=subprocess.DEVNULL)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    steps = read_steps(_FOLDERS.sub("", (work / "stdout").read_text(errors="replace")))
    if process.returncode != 0 or not steps:
        said = _FOLDERS.sub("", " ".join((work / "stderr").read_text(errors="replace").split())[-300:])
        steps.append(Step("the session ends by itself", "failed", f"exit {process.returncode}: {said}"))
    return steps


def _run_all(clients: Sequence[Client], cache: Path, *, one_model: bool) -> list[Ran]:
    ran: list[Ran] = []
    with (
        tempfile.TemporaryDirectory(prefix="headrace-clients-") as directory,
        _stack(Path(directory), one_model=one_model) as stack,
    ):
        for client in clients:
            ran.append(run_session(client, stack.base_url, cache))
            typer.echo(ran[-1].line())
            for step in ran[-1].not_ok():
                typer.echo(f"    {step.verdict}: {step.name}: {step.why}")
    return ran


def main(
    only: Annotated[str, typer.Option(help="clients whose names have one of these in them: a,b")] = "",
    cache: Annotated[Path, typer.Option(help="where their environments are kept")] = CACHE,
) -> None:
    """Real clients, unmodified, against our server. Exits with 1 where a step failed that is not the model's fault."""
    chosen = [client for client in ROSTER if any(part in client.name for part in only.split(","))]
    ran: list[Ran] = []
    for one_model in (False, True):
        if alike := [client for client in chosen if client.one_model is one_model]:
            ran += _run_all(alike, cache, one_model=one_model)
    typer.echo(f"written to {write_record(read_record(), ran)}")
    write_table()
    raise typer.Exit(any(step.verdict == "failed" for client in ran for step in client.steps))
