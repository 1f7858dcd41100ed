"""Which fields of a Responses body have no effect, and which are refused, by name; the rest are in protocol.py.

What has no effect is checked and told back like the rest: clients find what they sent in the answer. Nothing that
constrains the answer is ever ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from shared.errors import UnsupportedParameter

# Each with the values that ask for nothing.
REFUSED: dict[str, tuple[Any, ...]] = {
    "access_programs": (),
    "background_options": (),
    "context_management": ([],),
    "conversation": (),
    "prompt": (),
    "truncation": ("disabled",),
}
ADVICE = {
    "conversation": "continue a conversation with previous_response_id",
    "prompt": "send the prompt's text as instructions or input",
    "truncation": "a prompt that is too long is refused",
}
# Each with the reason that it has no effect here.
NO_EFFECT: dict[str, str] = {
    "client_metadata": "a client's notes on itself; stored nowhere",
    "image": "no model takes images",
    "max_tool_calls": "counts calls of built-in tools, of which there are none",
    "moderation": "nothing is moderated",
    "prompt_cache_key": "the prefix cache finds what is alike by itself; told back",
    "prompt_cache_options": "the prefix cache has no options of a request",
    "prompt_cache_retention": "the prefix cache keeps what it has room for",
    "reasoning": "a hint that no served model takes; told back",
    "safety_identifier": "nobody is reported to anyone; told back",
    "stream_options.include_obfuscation": "there is nothing to obfuscate",
    "text.verbosity": "a hint that no served model takes; told back",
    "user": "tenants come from API keys; told back",
}


def checked_fields(body: Mapping[str, Any], *, is_strict: bool = False) -> dict[str, Any]:
    """`body` without neutral values of refused fields. Raises UnsupportedParameter for others; where `is_strict`, also
    for a field that would have no effect."""
    if is_strict:
        _check_effects(body)
    kept: dict[str, Any] = {}
    for name, value in body.items():
        if name not in REFUSED:
            kept[name] = value
        elif value not in REFUSED[name]:
            words = f"; {ADVICE[name]}" if name in ADVICE else ""
            raise UnsupportedParameter(f"{name}: not supported by this server{words}", param=name)
    return kept


def _check_effects(body: Mapping[str, Any]) -> None:
    for name, reason in NO_EFFECT.items():
        outer, _, inner = name.partition(".")
        value = body.get(outer)
        if inner:
            value = cast("dict[str, Any]", value).get(inner) if isinstance(value, dict) else None
        if value is not None:
            raise UnsupportedParameter(f"{name}: would have no effect ({reason}), and strict was asked for", param=name)
