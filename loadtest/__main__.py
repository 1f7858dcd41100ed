"""`python -m loadtest`: the load runs by name. `make bench` runs `overhead`."""

from __future__ import annotations

import typer

from loadtest import cancel, failover, overhead, overload
from loadtest.batch import run as batch
from loadtest.chaos import commands
from loadtest.clients import run as clients
from loadtest.edge import fuzz, proxies, streams
from loadtest.fairness import run as fairness
from loadtest.gpu import run as gpu
from loadtest.locality import run as locality
from loadtest.protocol import run as protocol
from loadtest.race import alone as engine
from loadtest.race import run as race
from loadtest.scaling import run as scaling

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Load runs, on loopback only, bounded in count and time."
)
app.command("overhead")(overhead.main)
app.command("chaos")(commands.chaos)
app.command("drill")(commands.drill)
app.command("clients")(clients.main)
app.command("protocol")(protocol.main)
app.command("race")(race.main)
app.command("engine")(engine.main)
app.command("fairness")(fairness.main)
app.command("overload")(overload.main)
app.command("gpu")(gpu.main)
app.command("cancel")(cancel.main)
app.command("failover")(failover.main)
app.command("streams")(streams.main)
app.command("fuzz")(fuzz.main)
app.command("proxies")(proxies.main)
app.command("batch")(batch.main)
app.command("scaling")(scaling.main)
app.command("locality")(locality.main)


@app.callback()
def _group() -> None:
    """Keeps `overhead` a subcommand while it is the only one."""


if __name__ == "__main__":
    app()
