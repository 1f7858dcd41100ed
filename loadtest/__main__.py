"""`python -m loadtest`: the load runs by name. `make bench` runs `overhead`."""

from __future__ import annotations

import typer

from loadtest import overhead

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Load runs, on loopback only, bounded in count and time."
)
app.command("overhead")(overhead.main)


@app.callback()
def _group() -> None:
    """Keeps `overhead` a subcommand while it is the only one."""


if __name__ == "__main__":
    app()
