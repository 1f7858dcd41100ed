"""The items of a conversation: which are accepted as input, as they are kept, and as chat's messages.

    message                roles user, assistant, system, developer; content a text or parts of text
    function_call          of an earlier answer; consecutive ones are one assistant's message with its calls
    function_call_output   a tool's message
    reasoning              kept, and not given to the model

Every item is kept with an id, its client's or one that follows from the request, so that a page of items can go on
after any of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator
from pydantic_core import PydanticCustomError

from gateway.openai.messages import MAX_PARTS, StrictModel

Item = dict[str, Any]
Status = Literal["in_progress", "completed", "incomplete"]
ItemId = Annotated[str, Field(min_length=1, max_length=256)]
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


class Part(StrictModel):
    """Of a message or of a function's output. Annotations and logprobs of an earlier answer are dropped."""

    type: Literal["input_text", "output_text", "text", "refusal"]
    text: str = ""
    refusal: str = ""
    annotations: list[Any] = Field(default_factory=list[Any], max_length=MAX_PARTS)
    logprobs: list[Any] = Field(default_factory=list[Any])

    @field_validator("type", mode="before")
    @classmethod
    def _is_text(cls, kind: Any) -> Any:
        if kind in ("input_image", "input_file", "input_audio", "input_video"):
            raise PydanticCustomError("unsupported_parameter", "'{kind}' is not supported", {"kind": kind})
        return cast("object", kind)

    @property
    def said(self) -> str:
        return self.refusal if self.type == "refusal" else self.text


def _as_parts(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else cast("object", content)


Content = Annotated[list[Part], BeforeValidator(_as_parts, json_schema_input_type=str | list[Part])]


class Message(StrictModel):
    """`phase` labels an answer's message for models that know it; it is dropped."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content = Field(max_length=MAX_PARTS)
    id: ItemId | None = None
    status: Status | None = None
    phase: str | None = None

    def kept(self) -> Item:
        kind = "output_text" if self.role == "assistant" else "input_text"
        content = [_kept_part(part, kind) for part in self.content]
        return {"type": "message", "role": self.role, "status": self.status or "completed", "content": content}


class FunctionCallItem(StrictModel):
    type: Literal["function_call"]
    call_id: str = Field(min_length=1, max_length=256)
    name: str = Field(min_length=1, max_length=256)
    arguments: str
    id: ItemId | None = None
    status: Status | None = None

    def kept(self) -> Item:
        about = {"call_id": self.call_id, "name": self.name, "arguments": self.arguments}
        return {"type": "function_call", **about, "status": self.status or "completed"}


class FunctionCallOutput(StrictModel):
    type: Literal["function_call_output"]
    call_id: str = Field(min_length=1, max_length=256)
    output: Content = Field(max_length=MAX_PARTS)
    id: ItemId | None = None
    status: Status | None = None

    def kept(self) -> Item:
        said = "".join(part.said for part in self.output)
        about = {"call_id": self.call_id, "output": said}
        return {"type": "function_call_output", **about, "status": self.status or "completed"}


class ReasoningText(StrictModel):
    type: Literal["summary_text", "reasoning_text"]
    text: str


class ReasoningItem(StrictModel):
    type: Literal["reasoning"]
    summary: list[ReasoningText] = Field(default_factory=list[ReasoningText], max_length=MAX_PARTS)
    content: list[ReasoningText] = Field(default_factory=list[ReasoningText], max_length=MAX_PARTS)
    encrypted_content: str | None = None
    id: ItemId | None = None
    status: Status | None = None

    def kept(self) -> Item:
        texts = {name: [part.model_dump() for part in getattr(self, name)] for name in ("summary", "content")}
        return {"type": "reasoning", **texts, "status": self.status or "completed"}


def _kind(item: Any) -> str:
    """The tag of an item: what has no type and a role is a message."""
    if not isinstance(item, dict):
        return str(getattr(item, "type", ""))
    fields = cast("dict[str, Any]", item)
    return str(fields.get("type", "message"))


InputItem = Annotated[
    Annotated[Message, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionCallOutput, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(
        _kind,
        custom_error_type="unsupported_parameter",
        custom_error_message="must be a message, function_call, function_call_output or reasoning; no other is",
    ),
]
# Parts of an error's path that are the union's, not the client's.
TAGS = frozenset({"message", "function_call", "function_call_output", "reasoning"})
_PREFIXES = {"message": "msg_", "function_call": "fc_", "function_call_output": "fco_", "reasoning": "rs_"}


def kept_items(items: Iterable[InputItem], request_id: str) -> list[Item]:
    """As they are stored and listed."""
    return [
        {"id": item.id or f"{_PREFIXES[item.type]}{request_id}i{number:04d}", **item.kept()}
        for number, item in enumerate(items)
    ]


def messages_of(instructions: str | None, items: Sequence[Item]) -> list[Item]:
    """Chat's messages. Instructions come first."""
    messages: list[Item] = [{"role": "system", "content": instructions}] if instructions else []
    for item in items:
        if item["type"] == "message":
            messages.append({"role": item["role"], "content": "".join(_said(part) for part in item["content"])})
        elif item["type"] == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
        elif item["type"] == "function_call":
            _add_call(messages, item)
    return messages


def _add_call(messages: list[Item], item: Item) -> None:
    """To the assistant's message before it, if it has said nothing to anybody since."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant"})
    function = {"name": item["name"], "arguments": item["arguments"]}
    calls = cast("list[Item]", messages[-1].setdefault("tool_calls", []))
    calls.append({"id": item["call_id"], "type": "function", "function": function})


def _kept_part(part: Part, kind: str) -> Item:
    if part.type == "refusal":
        return {"type": "refusal", "refusal": part.refusal}
    text: Item = {"type": kind, "text": part.text}
    return text | {"annotations": []} if kind == "output_text" else text


def _said(part: Item) -> str:
    return str(part["refusal"] if part["type"] == "refusal" else part["text"])
