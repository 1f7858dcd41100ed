"""The tools of a chat request: which functions are offered, which may or must be called, as checked models.

`offered` are the functions the model may call and `mode` says how: none, auto, required, or named (the one it must).
Sizes are bounded here; whether an answer can be held to a schema is checked where the grammar is built.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from gateway.openai.messages import StrictModel

MAX_TOOLS = 128
MAX_DESCRIPTION_CHARS = 8192
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
Mode = Literal["none", "auto", "required", "named"]
Name = Annotated[str, Field(pattern="^[a-zA-Z0-9_.-]{1,64}$")]


class Function(StrictModel):
    """`strict`: arguments are held to the schema whoever chooses to call; without it, where a call is forced."""

    name: Name
    description: str = Field(default="", max_length=MAX_DESCRIPTION_CHARS)
    parameters: dict[str, Any] = Field(default_factory=lambda: _NO_PARAMETERS)
    strict: bool = False

    @field_validator("parameters", mode="after")
    @classmethod
    def _are_an_object(cls, schema: dict[str, Any]) -> dict[str, Any]:
        if schema.get("type", "object") != "object":
            raise PydanticCustomError("schema", "must be a JSON schema of type 'object'")
        return schema or _NO_PARAMETERS


class Tool(StrictModel):
    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        """As chat templates expect it: all they know is name, description and parameters."""
        return {"type": "function", "function": self.function.model_dump(include={"name", "description", "parameters"})}


class FunctionName(StrictModel):
    name: Name


class NamedTool(StrictModel):
    type: Literal["function"]
    function: FunctionName


class AllowedTools(StrictModel):
    mode: Literal["auto", "required"]
    tools: list[NamedTool] = Field(min_length=1, max_length=MAX_TOOLS)


class ToolChoice(StrictModel):
    """A word alone is its `type`."""

    type: Literal["none", "auto", "required", "function", "allowed_tools"]
    function: FunctionName | None = None
    allowed_tools: AllowedTools | None = None

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> ToolChoice:
        for name in ("function", "allowed_tools"):
            if (self.type == name) != (getattr(self, name) is not None):
                raise PydanticCustomError("choice", "{name} goes with type '{name}', and only with it", {"name": name})
        return self

    @property
    def names(self) -> list[str]:
        """The functions it speaks of."""
        if self.function is not None:
            return [self.function.name]
        return [tool.function.name for tool in self.allowed_tools.tools] if self.allowed_tools else []


def _as_choice(value: Any) -> Any:
    return {"type": value} if isinstance(value, str) else cast("object", value)


class ToolRequest(StrictModel):
    """The fields of a chat request that concern tools."""

    tools: list[Tool] = Field(default_factory=list[Tool], max_length=MAX_TOOLS)
    tool_choice: Annotated[ToolChoice, BeforeValidator(_as_choice)] | None = None
    parallel_tool_calls: bool = True

    @property
    def mode(self) -> Mode:
        if not self.tools or self.tool_choice is None:
            return "auto" if self.tools else "none"
        if self.tool_choice.type == "function":
            return "named"
        return self.tool_choice.allowed_tools.mode if self.tool_choice.allowed_tools else _word(self.tool_choice)

    @property
    def offered(self) -> list[Function]:
        if self.mode == "none":
            return []
        names = self.tool_choice.names if self.tool_choice else []
        return [tool.function for tool in self.tools if not names or tool.function.name in names]

    @field_validator("tools", mode="before")
    @classmethod
    def _are_some(cls, tools: Any) -> Any:
        if tools == []:
            raise PydanticCustomError("tools", "must not be an empty array; leave it out")
        return cast("object", tools)

    @field_validator("tools", mode="after")
    @classmethod
    def _have_names_of_their_own(cls, tools: list[Tool]) -> list[Tool]:
        names = [tool.function.name for tool in tools]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise PydanticCustomError("tools", "has two functions named '{name}'", {"name": twice})
        return tools

    @model_validator(mode="after")
    def _choice_is_among_them(self) -> ToolRequest:
        if self.tool_choice is None or self.tool_choice.type == "none":
            return self
        if not self.tools:
            raise PydanticCustomError("at_tool_choice", "is only allowed when tools are given")
        missing = set(self.tool_choice.names) - {tool.function.name for tool in self.tools}
        if missing:
            raise PydanticCustomError("at_tool_choice", "'{name}' is none of the tools", {"name": min(missing)})
        return self


def _word(choice: ToolChoice) -> Mode:
    return "required" if choice.type == "required" else "none" if choice.type == "none" else "auto"
