"""`headrace keys new`: makes an API key, shows it once, and says what to store. Changes nothing itself.

Only the key's SHA-256 is stored, in the file HEADRACE_KEYS_FILE names or in the Redis hash `hr:keys`.
"""

from __future__ import annotations

import shlex
from typing import Annotated

import msgspec
import typer

from deploy.terminal import refusals
from shared import keys
from shared.access.entries import KeyEntry, entry_as_json, entry_as_toml, new_key, sha256_of
from shared.errors import InvalidRequest

app = typer.Typer(add_completion=False, no_args_is_help=True, help="API keys of tenants.")

_LIMITS = {
    "requests_per_min": "Requests a minute.",
    "tokens_per_min": "Tokens a minute, prompts and answers together.",
    "max_concurrency": "Requests at once, waiting or running.",
    "max_waiting": "Requests that may wait in one class of one model's queue.",
    "max_prompt_tokens": "Longest prompt.",
    "max_output_tokens": "Longest answer.",
}


@app.callback()
def root() -> None:
    """A group, though it has one command."""


@app.command()
def new(
    tenant: Annotated[str, typer.Option(help="Whose key it is.")],
    weight: Annotated[float, typer.Option(help="Its share of a busy fleet, against the others'.")] = 1.0,
    limit: Annotated[
        list[str] | None,
        typer.Option(help=f"NAME=NUMBER, repeated. {' '.join(f'{name}: {words}' for name, words in _LIMITS.items())}"),
    ] = None,
    model: Annotated[list[str] | None, typer.Option(help="A model it may use, repeated; none: all.")] = None,
    service_class: Annotated[
        list[str] | None, typer.Option("--class", help="A service class it may use, repeated; none: all.")
    ] = None,
    operator: Annotated[bool, typer.Option("--operator", help="It may use /operator/v1.")] = False,
) -> None:
    """Make a key: prints it once, and the entry to store."""
    key = new_key()
    fields: dict[str, object] = {
        "sha256": sha256_of(key),
        "tenant": tenant,
        "weight": weight,
        "models": model or [],
        "service_classes": service_class or [],
        "is_operator": operator,
    }
    with refusals():
        entry = _entry(fields | _limits(limit or []))
    command = shlex.join(["HSET", keys.API_KEYS, entry.sha256, entry_as_json(entry)])
    typer.echo(
        f"The key, shown this once:\n\n  {key}\n\n"
        f"Store its entry in the file that HEADRACE_KEYS_FILE names:\n\n{entry_as_toml(entry)}\n\n"
        f"or in Redis:\n\n  redis-cli {command}\n\n"
        "Gateways read both again every HEADRACE_MODEL_POLL_S. With the first key the service is closed to all others."
    )


def _limits(given: list[str]) -> dict[str, object]:
    limits: dict[str, object] = {}
    for text in given:
        name, _, number = text.partition("=")
        name = name.strip().replace("-", "_")
        if name not in _LIMITS or not number.strip().isdecimal():
            raise InvalidRequest(f"--limit {text}: must be NAME=NUMBER with a name of {', '.join(_LIMITS)}")
        limits[name] = int(number)
    return limits


def _entry(fields: dict[str, object]) -> KeyEntry:
    try:
        return msgspec.convert(fields, KeyEntry)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"no such key can be made: {error}") from error
