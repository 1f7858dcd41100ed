"""A Responses body and the conversation before it -> the Request for the queue, its view, and the items to keep.

By way of chat: the same templates, tools, grammars and limits, so what holds there holds here. Faults found there are
told by the names of this endpoint. Pure and CPU-bound, as convert.py is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from gateway.openai.convert import Converted, Target, chat_request
from gateway.openai.protocol import ChatCompletionRequest, invalid_request
from gateway.openai.responses.items import Item, kept_items, messages_of
from gateway.openai.responses.protocol import LOGPROBS, Prompted, ResponseRequest
from gateway.openai.responses.view import ResponseView
from gateway.openai.tools.plan import plan_of
from shared.errors import InvalidRequest
from shared.schemas import Request

T = TypeVar("T")
# What chat calls a field, as a path may begin, and what it is called here.
_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
}
_SAME = (
    "temperature", "top_p", "presence_penalty", "frequency_penalty", "service_tier", "parallel_tool_calls",
    "top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos", "seed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ConvertedResponse:
    """`items`: the whole conversation the model is given."""

    request: Request
    view: ResponseView
    items: list[Item]


def response_request(body: ResponseRequest, before: Sequence[Item], target: Target) -> ConvertedResponse:
    """Raises InvalidRequest or ContextLengthExceeded."""
    items = [*before, *kept_items(body.input, target.request_id)]
    asks_logprobs = body.top_logprobs > 0 or LOGPROBS in body.include
    settings = {name: getattr(body, name) for name in _SAME}
    settings |= {"max_completion_tokens": body.max_output_tokens, "logprobs": asks_logprobs}
    chat = _chat(body, items, settings | {"top_logprobs": body.top_logprobs})
    converted: Converted = _as_response(lambda: chat_request(chat, target))
    view = ResponseView(
        model=target.name,
        echo=_echo(body),
        is_background=body.background,
        logprobs=asks_logprobs,
        answer=converted.view.answer,
    )
    return ConvertedResponse(converted.request, view, items)


def num_input_tokens(body: Prompted, before: Sequence[Item], target: Target) -> int:
    """Of the prompt that would be made. Raises InvalidRequest."""
    items = [*before, *kept_items(body.input, target.request_id)]
    chat = _chat(body, items, {"parallel_tool_calls": body.parallel_tool_calls})
    return _as_response(lambda: len(target.tokenizer.encode(plan_of(chat, target.card, target.tokenizer).prompt)))


def _chat(body: Prompted, items: Sequence[Item], settings: dict[str, Any]) -> ChatCompletionRequest:
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": messages_of(body.instructions, items),
        **{name: value for name, value in settings.items() if value is not None},
    }
    shape = body.text.format
    if shape.type == "json_schema":
        about = {"name": shape.name, "schema": shape.schema_, "strict": shape.strict}
        fields["response_format"] = {"type": "json_schema", "json_schema": about}
    elif shape.type == "json_object":
        fields["response_format"] = {"type": "json_object"}
    if body.tools:
        fields["tools"] = [tool.for_chat() for tool in body.tools]
        if body.tool_choice is not None:
            fields["tool_choice"] = body.tool_choice.for_chat()
    elif body.tool_choice is not None and body.tool_choice.type not in ("none", "auto"):
        raise InvalidRequest("tool_choice: is only allowed when tools are given", param="tool_choice")
    try:
        return ChatCompletionRequest.model_validate(fields)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        raise _renamed(invalid_request(faults)) from None


def _as_response(convert: Callable[[], T]) -> T:
    try:
        return convert()
    except InvalidRequest as error:
        raise _renamed(error) from error


def _renamed(error: InvalidRequest) -> InvalidRequest:
    """The same fault, by the name its field has in this endpoint."""
    param = error.param or ""
    name = next((name for name in _NAMES if param == name or param.startswith((f"{name}.", f"{name}["))), None)
    here = param.replace(".function.", ".", 1) if name is None else _NAMES[name] + param.removeprefix(name)
    if here == param:
        return error
    message = here + error.message.removeprefix(param) if error.message.startswith(f"{param}:") else error.message
    return type(error)(message, param=here, code=error.code)


def _echo(body: ResponseRequest) -> dict[str, Any]:
    """What the answer says of its request; `user` only where it was given."""
    text: dict[str, Any] = {"format": body.text.format.echoed()}
    if body.text.verbosity is not None:
        text["verbosity"] = body.text.verbosity
    reasoning: dict[str, Any] = {"effort": None, "summary": None}
    if body.reasoning is not None:
        reasoning |= body.reasoning.model_dump(exclude_none=True)
    echo: dict[str, Any] = {
        "background": body.background,
        "frequency_penalty": body.frequency_penalty,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata,
        "parallel_tool_calls": body.parallel_tool_calls,
        "presence_penalty": body.presence_penalty,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": reasoning,
        "safety_identifier": body.safety_identifier,
        "service_tier": body.service_class.value,
        "store": body.store,
        "temperature": body.temperature,
        "text": text,
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice.echoed(),
        "tools": [_echoed_tool(tool.model_dump()) for tool in body.tools],
        "top_logprobs": body.top_logprobs,
        "top_p": body.top_p,
        "truncation": "disabled",
    }
    return echo if body.user is None else echo | {"user": body.user}


def _echoed_tool(tool: dict[str, Any]) -> dict[str, Any]:
    return tool | {"strict": bool(tool["strict"])}
