"""What an answer is made of, piece by piece: text, reasoning, calls of functions.

A parser turns released text into these; what a client sees is made of them alone. Of each call they come as
CallStart, any number of CallArguments, CallEnd, in that order and never mixed with those of another call.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """`index` counts the calls of a choice, from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A further piece of the arguments, which are the text of a JSON object when the call ends complete."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """`is_complete` is false where the answer ended, or broke off, before its arguments did."""

    index: int
    is_complete: bool


Delta = Content | Reasoning | CallStart | CallArguments | CallEnd


def call_id(request_id: str, choice: int, index: int) -> str:
    """The same on every gateway, another for every call of a conversation."""
    return "call_" + hashlib.blake2b(f"{request_id}/{choice}/{index}".encode(), digest_size=12).hexdigest()
