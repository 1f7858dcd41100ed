"""The `headrace` command: reads the line, hands over, and turns refusals into one clear message and an exit code.

Exit codes: 0 ended as asked, 1 something failed (a child, a check), 2 refused to start (settings, port, directory).
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
import zlib
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from deploy import api_keys
from deploy.doctor import cores, machine
from deploy.launcher import Launcher, run_until_signalled
from deploy.operator import commands as operator
from deploy.plan import CHAOS, GATEWAY, WORKER, Commands, share_of_cores
from deploy.process import inherited_environment
from deploy.terminal import refusals
from shared.config import GatewaySettings, LauncherSettings, WorkerSettings, load

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(operator.app)
app.add_typer(api_keys.app, name="keys")

Host = Annotated[str | None, typer.Option(help="Address to listen on. [HEADRACE_HOST, default 127.0.0.1]")]
Port = Annotated[int | None, typer.Option(help="Port to listen on. [HEADRACE_PORT, default 8000]")]
Model = Annotated[
    str | None,
    typer.Option(help="GGUF file, Hugging Face folder, or packaged model. [HEADRACE_MODEL, default smollm2]"),
]
Redis = Annotated[str | None, typer.Option("--redis", help="URL of a Redis or Valkey server. [HEADRACE_REDIS_URL]")]


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"headrace {version('headrace')}")
        raise typer.Exit


@app.callback()
def root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """LLM serving on a durable queue: an OpenAI-compatible gateway, Redis streams, workers that batch continuously."""


@app.command()
def up(
    workers: Annotated[int | None, typer.Option(help="How many workers. [HEADRACE_WORKERS, default 1]")] = None,
    port: Port = None,
    model: Model = None,
    redis: Annotated[
        str | None, typer.Option("--redis", help="Use this server, not the embedded Valkey. [HEADRACE_REDIS_URL]")
    ] = None,
    data_dir: Annotated[str | None, typer.Option(help="Where data and logs live. [HEADRACE_DATA_DIR]")] = None,
    demo: Annotated[bool, typer.Option(help="Stream one answer once everything is up.")] = True,
) -> None:
    """Start everything on this machine: embedded Valkey, gateway, workers. Ctrl-C stops it."""
    with refusals():
        settings = load(LauncherSettings, workers=workers, port=port, model=model, redis_url=redis, data_dir=data_dir)
        load(GatewaySettings)
        asyncio.run(run_until_signalled(Launcher(settings, _commands(settings), show_answer=demo)))


def _commands(settings: LauncherSettings) -> Commands:
    """What the workers of this machine share out among them."""
    worker = load(WorkerSettings)
    sets = cores.deal(settings.workers) if worker.cpu_set == "auto" and settings.workers else []
    threads = worker.threads or (0 if worker.cpu_set else share_of_cores(settings.workers))
    here = f"{zlib.crc32(str(Path(settings.data_dir).resolve()).encode()):08x}"
    name = worker.worker_name or f"{re.sub('[^A-Za-z0-9.-]', '-', socket.gethostname())[:60]}-{here}"
    return Commands(worker_threads=threads, cpu_sets=sets, worker_name=f"{name}-worker")


@app.command()
def gateway(host: Host = None, port: Port = None, redis: Redis = None) -> None:
    """Run one gateway in the foreground."""
    with refusals():
        load(GatewaySettings, host=host, port=port, redis_url=redis)
        _become(GATEWAY, {"HEADRACE_HOST": host, "HEADRACE_PORT": port, "HEADRACE_REDIS_URL": redis})


@app.command()
def worker(model: Model = None, redis: Redis = None) -> None:
    """Run one worker in the foreground."""
    with refusals():
        load(WorkerSettings, model=model, redis_url=redis)
        _become(WORKER, {"HEADRACE_MODEL": model, "HEADRACE_REDIS_URL": redis})


@app.command(name="doctor")
def run_doctor(
    redis: Redis = None,
    port: Port = None,
    model: Model = None,
) -> None:
    """Check this machine and, where a URL is given, the Redis server. Exit code 1 when something must be mended."""
    with refusals():
        settings = load(LauncherSettings, redis_url=redis, port=port, model=model)
        findings = machine.examine(settings)
    for finding in findings:
        typer.echo(finding.line())
    if any(finding.level == "FAIL" for finding in findings):
        raise typer.Exit(1)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def chaos(context: typer.Context) -> None:
    """Break a deployment under load, from a seed, and check every byte: --seed S --minutes M [--backend native]."""
    _become((*CHAOS, *context.args), {})


def _become(argv: Sequence[str], options: Mapping[str, str | int | None]) -> NoReturn:
    """Replace this process by a service, with what the line said added to its environment."""
    added = {name: str(value) for name, value in options.items() if value is not None}
    sys.stdout.flush()
    os.execve(argv[0], list(argv), inherited_environment(added))


def main() -> None:
    app()
