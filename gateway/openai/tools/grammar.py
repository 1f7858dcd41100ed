"""What calls an answer is held to, as one grammar in Lark's notation.

    forced       calls and nothing else: tool_choice required, or a named function
    otherwise    free text, or an answer of its own schema, and calls that are right where there are some: `strict`

Calls are written as the family writes them, without special tokens, so that its parser reads them. The arguments of a
`strict` function keep to its schema, or the schema is refused; of another as far as its keywords are known. Reasoning
may come before where the model reasons.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from gateway.openai.constraints import check_size
from gateway.openai.tools.definitions import Function
from gateway.openai.tools.families import THINK_END, THINK_START, Family
from shared.schemas import Constraint, ConstraintKind
from shared.text.grammar import check_constraint, json_rule

MAX_FORCED_CALLS = 16
TEXT = r"TEXT: /(.|\n)*/"
_PLAIN = r"PLAIN: /([^ \t\r\n{\[](.|\n)*)?/"


def held_calls(
    family: Family,
    functions: Sequence[Function],
    *,
    is_parallel: bool,
    reasoning: str = "",
    otherwise: str | None = None,
) -> Constraint:
    """Checked; takes a millisecond or many. `otherwise`: what may stand instead of calls, the text of a JSON schema, or
    "" for any text; None: nothing. Raises InvalidRequest with param "tools".
    """
    rules = [
        _start(family, otherwise, reasoning, is_parallel=is_parallel),
        *_calls(family, len(functions), is_parallel=is_parallel),
    ]
    for number, function in enumerate(functions):
        check_size(function.parameters, "tools")
        arguments = json.dumps("parameters" if family.name == "llama3" else "arguments")
        before = json.dumps(f'{{"name": {json.dumps(function.name)}, {arguments}: ')
        schema = {"type": "object", **function.parameters}
        rules.append(f'call_{number}: {before} arguments_{number} "}}"')
        rules.append(f"arguments_{number}: {json_rule(schema, is_lenient=not function.strict)}")
    if otherwise:
        rules.append(f"answer: {json_rule(json.loads(otherwise))}")
    constraint = Constraint(ConstraintKind.GRAMMAR, "\n".join(rules))
    check_constraint(constraint, "tools")
    return constraint


def _start(family: Family, otherwise: str | None, reasoning: str, *, is_parallel: bool) -> str:
    thought = {"open": "thought ", "tagged": "thought? "}.get(reasoning, "")
    rules = [TEXT]
    if thought:
        opening = f'"{THINK_START}" ' if reasoning == "tagged" else ""
        rules += [f"thought: {opening}thinking /[ \\n]*/", f'thinking[lazy]: TEXT "{THINK_END}"']
    if otherwise is None:
        rules.append(f"start: {thought}calls")
    elif otherwise:
        rules.append(f"start: {thought}(calls | answer)")
    elif family.bare:
        rules += [_PLAIN, f"start: {thought}(calls | PLAIN)"]
    else:
        rules += [
            "start: part* TEXT" if is_parallel else "start: part? TEXT",
            f'part: lead /\\n?/ call /\\n?/ "{family.closing}"',
        ]
        rules.append(f'lead[lazy]: TEXT "{family.opening}"')
    return "\n".join(rules)


def _calls(family: Family, num_functions: int, *, is_parallel: bool) -> list[str]:
    call = "call: " + " | ".join(f"call_{number}" for number in range(num_functions))
    opening, between, closing = "", '"; "', ""
    if family.closing:
        opening, between, closing = f'"{family.opening}\\n" ', f'"\\n{family.closing}\\n{family.opening}\\n"', ""
        closing = f' "\\n{family.closing}"'
    elif family.name != "llama3":
        opening, between, closing = '"[" ', '", "', ' "]"'
    more = f" ({between} call){{0,{MAX_FORCED_CALLS - 1}}}" if is_parallel else ""
    return [call, f"calls: {opening}call{more}{closing}"]
