"""How families of models write calls of functions and reasoning, as plain data, and which one a chat template shows.

    hermes   <tool_call>{"name": ..., "arguments": {...}}</tool_call>      Hermes, Qwen, SmolLM
    llama3   {"name": ..., "parameters": {...}}, maybe after <|python_tag|>  Llama 3.1 to 3.3
    mistral  [TOOL_CALLS][{"name": ..., "arguments": {...}}], or, of newer models, [TOOL_CALLS]name[ARGS]{...}
    json     {"name": ..., "arguments": {...}}, or a list of them           models that were taught none of these

Each is also understood with "parameters" for "arguments" and the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """`opening` and `closing` stand around calls; `bare` are the characters that begin calls without an opening, where
    an answer begins with one. `special` are the markers that are tokens without a text unless a request asks for it.
    """

    name: str
    opening: str = ""
    closing: str = ""
    bare: str = ""
    special: tuple[str, ...] = ()


FAMILIES = {
    family.name: family
    for family in (
        Family(
            "hermes", opening="<tool_call>", closing="</tool_call>", special=("<tool_call>", "</tool_call>")
        ),
        Family("llama3", opening="<|python_tag|>", bare="{", special=("<|python_tag|>",)),
        Family(
            "mistral", opening="[TOOL_CALLS]", bare="[", special=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
        ),
        Family("json", bare="{["),
    )
}  # fmt: skip
MAX_CALLS = 128  # in one answer
NAME_END = "[ARGS]"
CALL_ID = "[CALL_ID]"
THINK_START = "<think>"
THINK_END = "</think>"


def family_shown(chat_template: str) -> str:
    """The family a template that takes tools was written for; "" for one that takes none."""
    if "[TOOL_CALLS]" in chat_template:
        return "mistral"
    if "tools" not in chat_template:
        return ""
    if "<tool_call>" in chat_template:
        return "hermes"
    if "<|python_tag|>" in chat_template or "Environment: ipython" in chat_template:
        return "llama3"
    return "json"


def shows_reasoning(chat_template: str) -> bool:
    return THINK_END in chat_template
