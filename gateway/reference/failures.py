"""The table from exception to status, type, code and `param`, as rows: read from the tree and the code that answers.

Nothing is written here that could be derived, but for the words on `param`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.http.errors import FINAL, NOT_FINAL, TABLE
from shared.errors import (
    ConfigurationError,
    ContextLengthExceeded,
    HeadraceError,
    IdempotencyConflict,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    PermissionDenied,
    Unavailable,
    UnsupportedMediaType,
)

_PARAM: dict[type[HeadraceError], str] = {
    InvalidRequest: "the field or header, where it is one",
    ContextLengthExceeded: "`messages`, `prompt` or `input`",
    UnsupportedMediaType: "`content-type` or `content-encoding`",
    PermissionDenied: "`service_tier`, where it is one",
    ModelNotFound: "`model`",
    IdempotencyConflict: "`idempotency-key`",
}
# The official clients repeat these statuses, unless x-should-retry forbids it.
_REPEATED = (408, 409, 429)


@dataclass(frozen=True, slots=True)
class Failure:
    """`retry`: what a client is told, or does by itself."""

    name: str
    status: int
    type: str
    code: str
    param: str
    retry: str


def failures() -> list[Failure]:
    """Of every exception that may reach a client, ancestors first, in the order of the tree."""
    return [_failure(kind) for kind in _kinds(HeadraceError) if kind is not ConfigurationError]


def _kinds(kind: type[HeadraceError]) -> Iterator[type[HeadraceError]]:
    yield kind
    for child in kind.__subclasses__():
        if child.__module__.startswith("shared."):
            yield from _kinds(child)


def _failure(kind: type[HeadraceError]) -> Failure:
    status, type_ = next(TABLE[ancestor] for ancestor in kind.__mro__ if ancestor in TABLE)
    param = next((_PARAM[ancestor] for ancestor in kind.__mro__ if ancestor in _PARAM), "null")
    return Failure(kind.__name__, status, type_, kind.code, param, _retry(kind, status))


def _retry(kind: type[HeadraceError], status: int) -> str:
    if issubclass(kind, Overloaded | Unavailable):
        return "after `retry-after`"
    if issubclass(kind, FINAL) and not issubclass(kind, NOT_FINAL):
        return "no: `x-should-retry: false`" if status >= 500 or status in _REPEATED else "no"
    return "clients do" if status >= 500 or status in _REPEATED else "no"
