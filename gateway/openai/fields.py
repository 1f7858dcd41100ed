"""Which fields of a request body are taken, ignored or refused, by name.

A field is one of: honoured (a field of the models in protocol.py), harmless (accepted, has no effect here and
constrains nothing), or not supported yet (refused, unless its value asks for nothing). Any other name is
unknown and refused. Ignoring a field that constrains the answer is the worst fault a server can have, so
nothing is harmless by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared.errors import UnsupportedParameter

# Neutral values: what a client may send of a refused field, because it asks for nothing.
NEVER: tuple[Any, ...] = ()
_COMMON: dict[str, tuple[Any, ...]] = {
    "continuous_usage_stats": (False,),
    "echo": (False,),
    "best_of": (1,),
}

UNSUPPORTED_IN_CHAT: dict[str, tuple[Any, ...]] = _COMMON | {
    "functions": NEVER,
    "function_call": ("none",),
    "modalities": (["text"],),
    "audio": NEVER,
    "web_search_options": NEVER,
    "chat_template": NEVER,
    "continue_final_message": (False,),
}

UNSUPPORTED_IN_COMPLETIONS: dict[str, tuple[Any, ...]] = _COMMON | {"suffix": ("",)}

# Each with the reason that it has no effect here.
HARMLESS: dict[str, str] = {
    "metadata": "yours to keep; stored nowhere",
    "moderation": "nothing is moderated",
    "parallel_tool_calls": "goes with tools",
    "prediction": "only ever a hint for speed",
    "prompt_cache_key": "the prefix cache finds what is alike by itself",
    "prompt_cache_options": "the prefix cache has no options of a request",
    "prompt_cache_retention": "the prefix cache keeps what it has room for",
    "reasoning_effort": "a hint that no served model takes",
    "safety_identifier": "nobody is reported to anyone",
    "store": "answers are kept for retention_s, whatever it says",
    "stream_options.include_obfuscation": "there is nothing to obfuscate",
    "user": "tenants come from API keys",
    "verbosity": "a hint that no served model takes",
}


def honoured_fields(body: Mapping[str, Any], unsupported: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """`body` without harmless and neutral fields. Raises UnsupportedParameter for what would have an effect."""
    kept: dict[str, Any] = {}
    for name, value in body.items():
        if name in unsupported:
            if not any(_is_same(value, neutral) for neutral in unsupported[name]):
                raise UnsupportedParameter(f"{name}: not supported by this server", param=name)
        elif name not in HARMLESS:
            kept[name] = value
    return kept


def documented(unsupported: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """The same lists, as arguments of `body_schema` (gateway/routes/documentation.py)."""
    return {"no_effect": HARMLESS, "refused": unsupported}


def _is_same(value: Any, neutral: Any) -> bool:
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
