"""Which fields of a request body are taken, ignored or refused, by name.

A field is one of: honoured (a field of the models in protocol.py), harmless (accepted, has no effect here and
constrains nothing), or not supported yet (refused, unless its value asks for nothing). Any other name is
unknown and refused. Ignoring a field that constrains the answer is the worst fault a server can have, so
nothing is harmless by default; a client that asks for `strict` is refused those too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from shared.errors import UnsupportedParameter

# Neutral values: what a client may send of a refused field, because it asks for nothing.
NEVER: tuple[Any, ...] = ()
_COMMON: dict[str, tuple[Any, ...]] = {
    "continuous_usage_stats": (False,),
    "best_of": (1,),
}

UNSUPPORTED_IN_CHAT: dict[str, tuple[Any, ...]] = _COMMON | {
    "echo": (False,),
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


# Of refused fields, what to send instead.
ADVICE: dict[str, str] = {
    "best_of": "n gives as many answers; choose among them by their logprobs",
    "chat_template": "the model's own is used; its variables go in chat_template_kwargs",
    "continuous_usage_stats": "it goes in stream_options",
    "function_call": "use tool_choice",
    "functions": "use tools",
}


def honoured_fields(
    body: Mapping[str, Any], unsupported: Mapping[str, tuple[Any, ...]], *, is_strict: bool = False
) -> dict[str, Any]:
    """`body` without harmless and neutral fields. Raises UnsupportedParameter for what would have an effect; where
    `is_strict`, also for what has none."""
    if is_strict:
        _check_effects(body)
    kept: dict[str, Any] = {}
    for name, value in body.items():
        if name in unsupported:
            if not any(_is_same(value, neutral) for neutral in unsupported[name]):
                words = f"; {ADVICE[name]}" if name in ADVICE else ""
                raise UnsupportedParameter(f"{name}: not supported by this server{words}", param=name)
        elif name not in HARMLESS:
            kept[name] = value
    return kept


def _check_effects(body: Mapping[str, Any]) -> None:
    for name, reason in HARMLESS.items():
        outer, _, inner = name.partition(".")
        value = body.get(outer)
        if inner:
            value = cast("dict[str, Any]", value).get(inner) if isinstance(value, dict) else None
        if value is not None:
            raise UnsupportedParameter(f"{name}: would have no effect ({reason}), and strict was asked for", param=name)


def documented(unsupported: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """The same lists, as arguments of `body_schema` (gateway/routes/documentation.py)."""
    return {"no_effect": HARMLESS, "refused": unsupported}


def _is_same(value: Any, neutral: Any) -> bool:
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
