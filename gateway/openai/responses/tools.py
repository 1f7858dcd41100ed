"""The tools of a Responses body: flat where chat's are nested. Checked here for their shape, by chat for the rest."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from gateway.openai.messages import StrictModel
from gateway.openai.tools.definitions import MAX_DESCRIPTION_CHARS, MAX_TOOLS, Name


class FunctionTool(StrictModel):
    type: Literal["function"]
    name: Name
    description: str | None = Field(default=None, max_length=MAX_DESCRIPTION_CHARS)
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @field_validator("type", mode="before")
    @classmethod
    def _is_function(cls, kind: Any) -> Any:
        if isinstance(kind, str) and kind != "function":
            raise PydanticCustomError(
                "unsupported_parameter", "tools of type '{kind}' are not supported", {"kind": kind[:64]}
            )
        return cast("object", kind)

    def for_chat(self) -> dict[str, Any]:
        function: dict[str, Any] = {"name": self.name, "strict": bool(self.strict)}
        if self.description is not None:
            function["description"] = self.description
        if self.parameters is not None:
            function["parameters"] = self.parameters
        return {"type": "function", "function": function}


class NamedFunction(StrictModel):
    type: Literal["function"]
    name: Name


class ResponseToolChoice(StrictModel):
    """A word alone is its `type`."""

    type: Literal["none", "auto", "required", "function", "allowed_tools"]
    name: Name | None = None
    mode: Literal["auto", "required"] = "auto"
    tools: list[NamedFunction] = Field(default_factory=list[NamedFunction], max_length=MAX_TOOLS)

    @field_validator("type", mode="before")
    @classmethod
    def _is_known(cls, kind: Any) -> Any:
        if isinstance(kind, str) and kind not in ("none", "auto", "required", "function", "allowed_tools"):
            raise PydanticCustomError("unsupported_parameter", "'{kind}' is not supported", {"kind": kind[:64]})
        return cast("object", kind)

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> ResponseToolChoice:
        if (self.type == "function") != (self.name is not None):
            raise PydanticCustomError("choice", "name goes with type 'function', and only with it")
        if (self.type == "allowed_tools") != bool(self.tools):
            raise PydanticCustomError("choice", "tools go with type 'allowed_tools', and only with it")
        return self

    def for_chat(self) -> str | dict[str, Any]:
        if self.type == "function":
            return {"type": "function", "function": {"name": self.name}}
        if self.type == "allowed_tools":
            tools = [{"type": "function", "function": {"name": tool.name}} for tool in self.tools]
            return {"type": "allowed_tools", "allowed_tools": {"mode": self.mode, "tools": tools}}
        return self.type

    def echoed(self) -> str | dict[str, Any]:
        if self.type == "function":
            return {"type": "function", "name": self.name}
        if self.type == "allowed_tools":
            return {"type": self.type, "mode": self.mode, "tools": [tool.model_dump() for tool in self.tools]}
        return self.type


def _as_choice(value: Any) -> Any:
    return {"type": value} if isinstance(value, str) else cast("object", value)


ToolChoice = Annotated[ResponseToolChoice, BeforeValidator(_as_choice)]
