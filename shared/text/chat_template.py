"""A model's chat template: Jinja in an immutable sandbox, with what Hugging Face templates expect to find.

Provided to templates: `raise_exception`, `strftime_now`, `tojson` without HTML escaping, loop controls, the
`generation` block (rendered as its body), and the special tokens by name. A template that fails is the
request's fault (InvalidRequest, param "messages"): it never saw messages it could render. The text is bounded.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from shared.errors import ConfigurationError, InvalidRequest
from shared.schemas import TokenizerBlob

MAX_RENDERED_CHARS = 16_000_000
MAX_FAULT_CHARS = 300


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's text for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012  the name and type are jinja2's

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """Compiled once. Rendering the same messages gives the same text, unless the template asks for the date."""

    def __init__(self, blob: TokenizerBlob) -> None:
        self._special_tokens = {
            "bos_token": blob.bos_token or "",
            "eos_token": blob.eos_token or "",
            "pad_token": blob.pad_token or "",
            "unk_token": blob.unk_token or "",
        }
        try:
            self._template = _environment().from_string(blob.chat_template or "")
        except TemplateError as error:
            raise ConfigurationError(f"chat template cannot be compiled: {error}") from error

    def render(self, messages: Sequence[dict[str, Any]], variables: dict[str, Any]) -> str:
        """Variables of the request cannot replace the special tokens or the messages."""
        context = {"documents": None, **variables, **self._special_tokens, "messages": messages}
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.generate(context):
                size += len(piece)
                if size > MAX_RENDERED_CHARS:
                    raise InvalidRequest(
                        f"the rendered prompt exceeds {MAX_RENDERED_CHARS} characters", param="messages"
                    )
                pieces.append(piece)
        except InvalidRequest:
            raise
        except Exception as error:  # a template may raise anything: TypeError, KeyError, RecursionError ...
            raise InvalidRequest(_fault(error), param="messages") from error
        return "".join(pieces)


def _fault(error: Exception) -> str:
    return f"the model's chat template refused the messages: {str(error)[:MAX_FAULT_CHARS]}"


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        extensions=["jinja2.ext.loopcontrols", _GenerationBlock],
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update({"raise_exception": _raise_exception, "strftime_now": _strftime_now})  # type: ignore[dict-item]
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
