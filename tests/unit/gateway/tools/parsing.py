"""Answers as a parser reads them, put together so that they can be compared however the text was cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gateway.openai.tools.answer import AnswerFormat, AnswerParser
from gateway.openai.tools.deltas import CallArguments, CallEnd, CallStart, Content, Delta, Reasoning

NAMES = ("get_weather", "add")


def read(text: str | Sequence[str], answer_format: AnswerFormat) -> list[tuple[str, ...]]:
    """What a client would hold at the end: runs of one kind joined; calls as (name, arguments, whether complete)."""
    parser = AnswerParser(answer_format)
    deltas = [delta for piece in ([text] if isinstance(text, str) else text) for delta in parser.push(piece)]
    return joined([*deltas, *parser.finish()])


def read_calls(text: str | Sequence[str], family: str) -> list[tuple[str, ...]]:
    return read(text, AnswerFormat(family=family, names=NAMES))


def joined(deltas: Iterable[Delta]) -> list[tuple[str, ...]]:
    parts: list[tuple[str, ...]] = []
    for delta in deltas:
        match delta:
            case Content(text) | Reasoning(text):
                kind = type(delta).__name__.lower()
                before = parts.pop()[1] if parts and parts[-1][0] == kind else ""
                parts.append((kind, before + text))
            case CallStart(_, name):
                parts.append(("call", name, ""))
            case CallArguments(_, text):
                parts[-1] = (*parts[-1][:2], parts[-1][2] + text)
            case CallEnd(_, is_complete):
                parts[-1] = (*parts[-1], "complete" if is_complete else "cut")
    return parts


def cuts(text: str) -> list[list[str]]:
    """Whole, cut once at every place, and in single characters."""
    return [[text], *([text[:at], text[at:]] for at in range(1, len(text))), list(text)]
