"""Routes as they are stored: what a public name leads to, and what a model's queue is bounded by.

A field of the Redis hash `hr:routes` is a name, its value a Route as JSON. An entry without `targets`, or with targets
that are the name itself or its revisions, is a model's own: only such a one has bounds and class weights, since only a
model has a queue. Knows no Redis and no HTTP.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from shared.errors import InvalidRequest
from shared.schemas import ServiceClass

MAX_ROUTES = 1000
MAX_TARGETS = 16
MAX_FALLBACKS = 8
MAX_NAME_CHARS = 256
_NAME = r"^[^\x00-\x1f\x7f]+$"
_FIELD = re.compile(r"\$\.(\w+)|field `(\w+)`")

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME_CHARS, pattern=_NAME)]
Weight = Annotated[float, msgspec.Meta(gt=0, le=1_000_000)]
ClassWeight = Annotated[float, msgspec.Meta(gt=0, le=1000)]
Bound = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000_000)]
Bytes = Annotated[int, msgspec.Meta(ge=1000, le=1_000_000_000_000)]


class Route(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """`targets`: names or revisions, each with its weight; none: the model of the route's own name.

    `fallbacks` are asked in order where the target has no room or no worker. A bound or weight that is not given is the
    gateway's. `by` changed it last, at `at_ms` of the server's clock; both are written by us.
    """

    targets: Annotated[dict[Name, Weight], msgspec.Meta(max_length=MAX_TARGETS)] = {}
    fallbacks: Annotated[tuple[Name, ...], msgspec.Meta(max_length=MAX_FALLBACKS)] = ()
    max_waiting: Bound | None = None
    max_waiting_tokens: Bound | None = None
    max_waiting_bytes: Bytes | None = None
    class_weights: dict[ServiceClass, ClassWeight] = {}
    by: Annotated[str, msgspec.Meta(max_length=256)] = ""
    at_ms: int = 0


def name_of(revision: str) -> str:
    """`name@digest` without its digest; a name stays as it is."""
    return revision.rpartition("@")[0] or revision


def route_of(name: str, fields: bytes) -> Route:
    """From its JSON. Raises InvalidRequest naming the field and its limit."""
    try:
        msgspec.convert(name, Name)
    except msgspec.ValidationError as error:
        words = f"name: must be 1 to {MAX_NAME_CHARS} characters, none of them a control character"
        raise InvalidRequest(words, param="name") from error
    try:
        route = msgspec.json.decode(fields, type=Route)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        field = _field_in(str(error))
        raise InvalidRequest(f"{field or 'route'}: {error}", param=field or None) from error
    _check(name, route)
    return route


def as_json(route: Route) -> str:
    return msgspec.json.encode(route).decode()


def _field_in(words: str) -> str:
    found = _FIELD.search(words)
    return (found.group(1) or found.group(2)) if found else ""


def _check(name: str, route: Route) -> None:
    own = {target for target in route.targets if name in (target, name_of(target))}
    for field in ("max_waiting", "max_waiting_tokens", "max_waiting_bytes", "class_weights"):
        if getattr(route, field) and own != set(route.targets):
            other = next(target for target in route.targets if target not in own)
            words = f"{field}: bounds the queue of a model, and '{name}' is an alias; set it at '{name_of(other)}'"
            raise InvalidRequest(words, param=field)
    if name in route.fallbacks:
        raise InvalidRequest(f"fallbacks: '{name}' is the route itself", param="fallbacks")
    if len(set(route.fallbacks)) < len(route.fallbacks):
        raise InvalidRequest("fallbacks: a name stands there twice", param="fallbacks")
    if route == Route(by=route.by, at_ms=route.at_ms):
        words = "targets: nothing is said: give targets, fallbacks, a bound or class weights"
        raise InvalidRequest(words, param="targets")
