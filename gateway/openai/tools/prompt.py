"""Tools for a model whose chat template takes none: offered in a system message, called and answered in plain text.

The functions stand in the system message, one JSON object a line, with how to call them; calls of earlier turns are
written as the family writes them, and results are a user's message between <tool_response> and </tool_response>.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from gateway.openai.tools.families import Family

Message = dict[str, Any]


def with_tools_in_words(messages: Sequence[Message], tools: Sequence[dict[str, Any]], family: Family) -> list[Message]:
    """`messages` for a template that knows only roles and text."""
    plain: list[Message] = []
    for message in messages:
        told = _in_words(message, family)
        is_result = message["role"] in ("tool", "function")
        if is_result and plain and plain[-1].get("is_result"):
            plain[-1]["content"] += "\n" + told["content"]
        else:
            plain.append(told | {"is_result": is_result})
    for message in plain:
        del message["is_result"]
    return _offering(plain, tools, family) if tools else plain


def _in_words(message: Message, family: Family) -> Message:
    if message["role"] in ("tool", "function"):
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    calls = [_written(call["function"], family) for call in message.get("tool_calls", ())]
    content = "\n".join([message["content"]] * bool(message["content"]) + calls)
    return {name: value for name, value in message.items() if name != "tool_calls"} | {"content": content}


def _written(function: dict[str, Any], family: Family) -> str:
    call = json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)
    return f"{family.opening}\n{call}\n{family.closing}" if family.closing else call


def _offering(messages: list[Message], tools: Sequence[dict[str, Any]], family: Family) -> list[Message]:
    form = '{"name": "<function>", "arguments": {<arguments>}}'
    shown = f"{family.opening}\n{form}\n{family.closing}" if family.closing else form
    functions = "\n".join(json.dumps(cast("object", tool["function"]), ensure_ascii=False) for tool in tools)
    words = (
        f"You can call these functions, each described by one line of JSON:\n{functions}\n"
        f"To call a function, write nothing but this, once for each call:\n{shown}\n"
        "What it returns comes between <tool_response> and </tool_response>. "
        "If no function is of use, answer in your own words."
    )
    if messages[0]["role"] == "system":
        return [messages[0] | {"content": f"{messages[0]['content']}\n\n{words}".strip()}, *messages[1:]]
    return [{"role": "system", "content": words}, *messages]
