"""The messages of a chat request: which are accepted, and what a chat template is given of them.

Every message reaches the template as role and text. Content parts are joined; `developer` is `system`, since
templates know only that; tool calls of earlier turns are passed on with their arguments parsed, as templates
expect. Echoes of what a server once answered (`reasoning*`, `refusal`, `annotations`) are accepted and dropped.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

MAX_MESSAGES = 4096
MAX_PARTS = 1024
_OTHER_CONTENT = ("image_url", "input_audio", "file", "video_url")
_ECHOES = ("annotations", "audio", "refusal", "thinking")


class StrictModel(BaseModel):
    """No coercion, no unknown fields, no infinities."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class ContentPart(StrictModel):
    """`{"type": "text", "text": ...}`, or the refusal of an earlier answer."""

    type: Literal["text", "refusal"]
    text: str | None = None
    refusal: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_text(cls, part: Any) -> object:
        kind = cast("dict[str, Any]", part).get("type") if isinstance(part, dict) else None
        if kind in _OTHER_CONTENT:
            raise PydanticCustomError(
                "unsupported_parameter", "content of type '{kind}' is not supported", {"kind": kind}
            )
        return cast("object", part)

    @model_validator(mode="after")
    def _has_text(self) -> ContentPart:
        if getattr(self, self.type) is None:
            raise PydanticCustomError("text_missing", "has no '{type}'", {"type": self.type})
        return self


class FunctionCall(StrictModel):
    name: str = Field(min_length=1, max_length=256)
    arguments: str = ""


class ToolCall(StrictModel):
    id: str = Field(default="", max_length=256)
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int = 0


def _as_parts(content: Any) -> Any:
    """One text is one part."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


class ChatMessage(StrictModel):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    tool_calls: list[ToolCall] = Field(default_factory=list[ToolCall], max_length=128)
    function_call: FunctionCall | None = None
    content: Annotated[
        list[ContentPart], BeforeValidator(_as_parts, json_schema_input_type=str | list[ContentPart])
    ] = Field(default_factory=list[ContentPart], max_length=MAX_PARTS, validate_default=True)
    name: str | None = Field(default=None, max_length=256)
    tool_call_id: str | None = Field(default=None, max_length=256)

    @model_validator(mode="before")
    @classmethod
    def _without_echoes(cls, message: Any) -> Any:
        if not isinstance(message, dict):
            return message
        fields = cast("dict[str, Any]", message)
        return {
            name: value for name, value in fields.items() if name not in _ECHOES and not name.startswith("reasoning")
        }

    @field_validator("content", mode="after")
    @classmethod
    def _is_given(cls, parts: list[ContentPart], info: ValidationInfo) -> list[ContentPart]:
        """Only an assistant's message may have no content."""
        if not parts and info.data.get("role", "assistant") != "assistant":
            raise PydanticCustomError("missing", "Field required")
        return parts

    def for_template(self) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": "".join(part.text or part.refusal or "" for part in self.content),
        }
        if self.name is not None:
            message["name"] = self.name
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        calls = self.tool_calls or ([ToolCall(function=self.function_call)] if self.function_call else [])
        if calls:
            message["tool_calls"] = [_call_for_template(call) for call in calls]
        return message


def _call_for_template(call: ToolCall) -> dict[str, Any]:
    """Arguments that are a JSON object become one: templates write them with `tojson`."""
    try:
        parsed: object = orjson.loads(call.function.arguments or "{}")
    except orjson.JSONDecodeError:
        parsed = None
    arguments = cast("object", parsed) if isinstance(parsed, dict) else call.function.arguments
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}
