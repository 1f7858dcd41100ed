"""The body of POST /v1/responses, as a model: strict types, bounds, unknown fields refused.

Parsing is one call, bytes -> model, and raises InvalidRequest naming the field. What has no effect or is refused by
name stands in fields.py; bounds that depend on the model are those of chat, to which convert.py hands it on.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from gateway.openai.body import json_object
from gateway.openai.messages import MAX_MESSAGES, StrictModel
from gateway.openai.protocol import MAX_DEADLINE_MS, MAX_TOP_LOGPROBS, invalid_request
from gateway.openai.responses.fields import checked_fields
from gateway.openai.responses.items import TAGS, InputItem
from gateway.openai.responses.tools import FunctionTool, ToolChoice
from gateway.openai.tools.definitions import MAX_TOOLS
from shared.schemas import ServiceClass

MAX_METADATA = 16
MAX_TEXT_CHARS = 2_000_000
LOGPROBS = "message.output_text.logprobs"
# All but the first concern tools and inputs that are not served here, so there is nothing to include.
Includable = Literal[
    "message.output_text.logprobs",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
]
MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]
ShortText = Annotated[str, Field(max_length=512)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Summary = Literal["auto", "concise", "detailed"]


class TextFormat(StrictModel):
    """`strict` or not, the answer is held to the schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: str = Field(default="", pattern="^[a-zA-Z0-9_-]{0,64}$")
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool = False

    @model_validator(mode="after")
    def _has_its_schema(self) -> TextFormat:
        if (self.type == "json_schema") != (self.schema_ is not None):
            raise PydanticCustomError("schema", "schema goes with type 'json_schema', and only with it")
        return self

    def echoed(self) -> dict[str, Any]:
        if self.type != "json_schema":
            return {"type": self.type}
        about = {"name": self.name, "description": self.description, "schema": self.schema_, "strict": self.strict}
        return {"type": self.type, **about}


class TextOptions(StrictModel):
    format: TextFormat = TextFormat(type="text")
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(StrictModel):
    effort: Effort | None = None
    summary: Summary | None = None
    generate_summary: Summary | None = None
    context: ShortText | None = None
    mode: ShortText | None = None


class ResponseStreamOptions(StrictModel):
    include_obfuscation: bool = False


def _as_items(value: Any) -> Any:
    return [{"role": "user", "content": value}] if isinstance(value, str) else cast("object", value)


Input = Annotated[list[InputItem], BeforeValidator(_as_items, json_schema_input_type=str | list[InputItem])]


class Prompted(StrictModel):
    """What makes the prompt: all that /v1/responses/input_tokens needs."""

    model: str = Field(min_length=1, max_length=256)
    input: Input = Field(min_length=1, max_length=MAX_MESSAGES)
    instructions: str | None = Field(default=None, max_length=MAX_TEXT_CHARS)
    previous_response_id: str | None = Field(default=None, min_length=1, max_length=128)
    text: TextOptions = TextOptions()
    tools: list[FunctionTool] = Field(default_factory=list[FunctionTool], max_length=MAX_TOOLS)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True
    reasoning: ReasoningOptions | None = None


class ResponseRequest(Prompted):
    """`None` and absent are the same. `top_k` to `deadline_ms` are ours, as in chat."""

    max_output_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, ge=0, le=1)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    top_logprobs: int = Field(default=0, ge=0, le=MAX_TOP_LOGPROBS)
    include: list[Includable] = Field(default_factory=list[Includable], max_length=32)
    stream: bool = False
    stream_options: ResponseStreamOptions | None = None
    store: bool = True
    background: bool = False
    service_tier: Literal["auto", "default", "flex", "priority"] = "auto"
    metadata: dict[MetadataKey, MetadataValue] = Field(default_factory=dict[str, str], max_length=MAX_METADATA)
    max_tool_calls: int | None = Field(default=None, ge=0)
    user: ShortText | None = None
    safety_identifier: ShortText | None = None
    prompt_cache_key: ShortText | None = None
    prompt_cache_retention: ShortText | None = None
    prompt_cache_options: dict[str, Any] | None = None
    moderation: dict[str, Any] | None = None
    client_metadata: dict[str, Any] | None = None
    image: dict[str, Any] | None = None
    top_k: int = Field(default=0, ge=-1, le=2**31 - 1)
    min_p: float = Field(default=0.0, ge=0, le=1)
    repetition_penalty: float = Field(default=1.0, gt=0, le=10)
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)
    min_tokens: int = Field(default=0, ge=0)
    ignore_eos: bool = False
    deadline_ms: int | None = Field(default=None, ge=1, le=MAX_DEADLINE_MS)

    @property
    def service_class(self) -> ServiceClass:
        return ServiceClass.DEFAULT if self.service_tier == "auto" else ServiceClass(self.service_tier)

    @property
    def is_heavy(self) -> bool:
        """Whether converting it takes more than its length says: a grammar is to be checked."""
        return self.text.format.type != "text" or bool(self.tools)

    @model_validator(mode="after")
    def _background_is_kept(self) -> ResponseRequest:
        if self.background and not self.store:
            raise PydanticCustomError("at_background", "needs store to be true: its answer is read from there")
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError("at_stream_options", "is only allowed when stream is true")
        return self


def parse_response(raw: bytes, *, is_strict: bool = False) -> ResponseRequest:
    """Strict refuses what would have no effect."""
    return cast("ResponseRequest", _validated(ResponseRequest, checked_fields(json_object(raw), is_strict=is_strict)))


def parse_prompted(raw: bytes) -> Prompted:
    """For /v1/responses/input_tokens."""
    return _validated(Prompted, checked_fields(json_object(raw)))


def _validated(kind: type[Prompted], fields: dict[str, Any]) -> Prompted:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        raise invalid_request([_as_sent(fault) for fault in faults]) from None


def _as_sent(fault: ErrorDetails) -> ErrorDetails:
    """With the path as the client knows it: `input[0].content`, without the union's own parts."""
    path = fault["loc"]
    kept = tuple(part for at, part in enumerate(path) if not (at and isinstance(path[at - 1], int) and part in TAGS))
    return {**fault, "loc": kept}
