"""From a checked chat request to its prompt, what its answer is held to, and how the answer is read.

How a model writes calls and reasoning is said by its worker's settings (`tool_format`, `reasoning_format`); `auto`
is what its chat template shows. A template that takes no tools has them offered in words, written as `hermes` does.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.openai.constraints import constraint_of
from gateway.openai.protocol import ChatCompletionRequest
from gateway.openai.tools.answer import AnswerFormat
from gateway.openai.tools.definitions import Function
from gateway.openai.tools.families import FAMILIES, THINK_START, Family, family_shown, shows_reasoning
from gateway.openai.tools.grammar import held_calls
from gateway.openai.tools.prompt import with_tools_in_words
from shared.errors import InvalidRequest, UnsupportedParameter
from shared.schemas import Constraint, ConstraintKind, ModelCard
from shared.text.tokenizer import Tokenizer

_MISTRAL_ID = re.compile("[a-zA-Z0-9]{9}")


@dataclass(frozen=True, slots=True)
class Writing:
    """How a model writes: `family` None is not known how, and then calls can only be forced. `takes_tools`: its chat
    template does."""

    family: Family | None
    takes_tools: bool
    reasons: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """`special_ids`: tokens without a text whose text the answer's parser needs."""

    prompt: str
    constraint: Constraint | None
    answer: AnswerFormat
    special_ids: tuple[int, ...] = ()


def writing_of(card: ModelCard, tokenizer: Tokenizer) -> Writing:
    shown = family_shown(tokenizer.chat_template)
    name = (shown or "hermes") if card.tool_format == "auto" else card.tool_format
    reasons = card.reasoning_format == "think" or (
        card.reasoning_format == "auto" and shows_reasoning(tokenizer.chat_template)
    )
    return Writing(FAMILIES.get(name), bool(shown), reasons)


def plan_of(body: ChatCompletionRequest, card: ModelCard, tokenizer: Tokenizer) -> Plan:
    """Raises InvalidRequest naming the field, UnsupportedParameter for calls this model is not known to write."""
    writing = writing_of(card, tokenizer)
    family = _family(body, writing)
    prompt = _rendered(body, writing, family or FAMILIES["json"], tokenizer)
    reasoning = _reasoning(writing, prompt)
    if family is None:
        constraint = constraint_of(body)
        return Plan(prompt, constraint, AnswerFormat(reasoning="" if constraint else reasoning))
    names = tuple(function.name for function in body.offered)
    answer = AnswerFormat(
        family=family.name, names=names, is_named=body.mode == "named", is_single=not body.parallel_tool_calls,
        reasoning=reasoning,
    )  # fmt: skip
    constraint = _held(body, family, answer)
    is_text = constraint is not None  # held to text, what it writes needs no special token
    return Plan(prompt, constraint, answer, () if is_text else _special_ids(family, tokenizer))


def _family(body: ChatCompletionRequest, writing: Writing) -> Family | None:
    """In which calls are looked for; None when there are none to look for."""
    if body.mode == "none":
        return None
    if writing.family is None and body.mode == "auto":
        raise UnsupportedParameter(
            "tools: it is not known how this model writes calls; force one with tool_choice 'required' or a named "
            "function, or have its worker's tool_format set",
            param="tools",
        )
    return writing.family or FAMILIES["json"]


def _rendered(body: ChatCompletionRequest, writing: Writing, family: Family, tokenizer: Tokenizer) -> str:
    messages = [message.for_template() for message in body.messages]
    offered = {function.name for function in body.offered}
    tools = [tool.for_template() for tool in body.tools if tool.function.name in offered]
    if writing.takes_tools:
        if family.name == "mistral":
            messages = [_with_short_ids(message) for message in messages]
    else:
        messages, tools = with_tools_in_words(messages, tools, family), []
    return tokenizer.render_chat(
        messages,
        tools=tools or None,
        add_generation_prompt=body.add_generation_prompt,
        **body.chat_template_kwargs,
    )


def _with_short_ids(message: dict[str, Any]) -> dict[str, Any]:
    """Mistral's templates refuse ids of calls that are not nine letters and digits."""
    short = dict(message)
    if "tool_call_id" in message:
        short["tool_call_id"] = _short_id(message["tool_call_id"])
    if "tool_calls" in message:
        short["tool_calls"] = [call | {"id": _short_id(call["id"])} for call in message["tool_calls"]]
    return short


def _short_id(call_id: str) -> str:
    return call_id if _MISTRAL_ID.fullmatch(call_id) else hashlib.blake2b(call_id.encode()).hexdigest()[:9]


def _reasoning(writing: Writing, prompt: str) -> Any:
    if not writing.reasons:
        return ""
    return "open" if prompt.rstrip().endswith(THINK_START) else "tagged"


def _held(body: ChatCompletionRequest, family: Family, answer: AnswerFormat) -> Constraint | None:
    functions = body.offered
    if body.mode != "auto":
        if body.is_constrained:
            raise InvalidRequest(
                "tool_choice: forces a call, which cannot also be held to the answer's format", param="tool_choice"
            )
        return _calls(body, family, functions, answer, otherwise=None)
    wanted = constraint_of(body)
    if wanted is not None:
        if wanted.kind is not ConstraintKind.JSON_SCHEMA:
            raise UnsupportedParameter(
                f"tools: beside them an answer can be held to a JSON schema, not to a {wanted.kind.value}",
                param="tools",
            )
        return _calls(body, family, functions, answer, otherwise=wanted.text)
    return _calls(body, family, functions, answer, otherwise="") if any(f.strict for f in functions) else None


def _calls(
    body: ChatCompletionRequest,
    family: Family,
    functions: Sequence[Function],
    answer: AnswerFormat,
    *,
    otherwise: str | None,
) -> Constraint:
    if otherwise == "" and (family.name == "mistral" or (family.bare and answer.reasoning)):
        raise UnsupportedParameter(
            "tools: strict cannot be held for this model where it chooses whether to call; leave strict out, or force "
            "a call with tool_choice",
            param="tools",
        )
    return held_calls(
        family, functions, is_parallel=body.parallel_tool_calls and body.mode != "named",
        reasoning=answer.reasoning, otherwise=otherwise,
    )  # fmt: skip


def _special_ids(family: Family, tokenizer: Tokenizer) -> tuple[int, ...]:
    ids = (tokenizer.token_id(token) for token in family.special)
    special = set(tokenizer.special_ids)
    return tuple(token_id for token_id in ids if token_id in special)
