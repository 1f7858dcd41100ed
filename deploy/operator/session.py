"""What the operator's commands share: their options, one visit to Redis, and how a report is printed.

They talk to Redis directly, so they work when no gateway and no worker lives.
"""

from __future__ import annotations

import asyncio
import getpass
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, TypeVar

import typer
from redis.exceptions import RedisError

from deploy.launcher import without_password
from deploy.terminal import refusals, say
from shared.config import GatewaySettings, load
from shared.errors import HeadraceError, Unavailable
from shared.operations.desk import Desk
from shared.operations.reports import Report
from shared.operations.scaling.figures import policy_of
from shared.redis_client import AWAY, Scripts, connect
from shared.request_queue import Bounds

T = TypeVar("T")

Redis = Annotated[
    str | None,
    typer.Option("--redis", help="URL of the Redis or Valkey server. [HEADRACE_REDIS_URL, default port 6379 here]"),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON, as /operator/v1 sends it.")]
By = Annotated[str | None, typer.Option("--by", help="Who does it, for the audit. [default: user@host]")]
Why = Annotated[str, typer.Option("--why", help="The reason; it is shown and audited.")]


def ask(redis: str | None, question: Callable[[Desk], Awaitable[Report[T]]]) -> Report[T]:
    """One report. Ends the command with a message where there is none: exit 1, or 2 for a wrong setting."""
    with refusals():
        return asyncio.run(_visit(load(GatewaySettings, redis_url=redis), question))


def answer(report: Report[T], lines: Callable[[T], Sequence[str]], *, as_json: bool) -> None:
    """The report as lines, the redis-cli lines behind it last; or as one JSON object."""
    if as_json:
        say(report.json().decode())
        return
    for line in lines(report.data):
        say(line)
    say("")
    for line in report.redis_cli:
        say(f"# {line}")


def who(by: str | None) -> str:
    if by:
        return by
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a container whose user has no name
        return f"somebody@{socket.gethostname()}"


async def _visit(settings: GatewaySettings, question: Callable[[Desk], Awaitable[Report[T]]]) -> Report[T]:
    scripts = Scripts(connect(settings))
    bounds = Bounds(settings.max_waiting, settings.max_waiting_tokens, settings.max_waiting_bytes)
    try:
        return await question(Desk(scripts, settings, bounds, policy_of(settings)))
    except AWAY as error:
        raise Unavailable(f"{without_password(settings.redis_url)} cannot be reached: {error}") from error
    except RedisError as error:
        raise HeadraceError(f"{without_password(settings.redis_url)} refuses: {error}") from error
    finally:
        await scripts.client.aclose()
