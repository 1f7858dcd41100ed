"""Request bodies of the OpenAI endpoints, as models: strict types, bounds, unknown fields refused.

Parsing is one call, bytes -> model, and raises InvalidRequest naming the field. What is refused or ignored
by name stands in fields.py. Bounds that depend on the model or on settings are checked in convert.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from gateway.openai.body import json_object
from gateway.openai.constraints import ConstrainedRequest
from gateway.openai.fields import UNSUPPORTED_IN_CHAT, UNSUPPORTED_IN_COMPLETIONS, honoured_fields
from gateway.openai.messages import MAX_MESSAGES, ChatMessage, StrictModel
from gateway.openai.tools.definitions import ToolRequest
from shared.errors import InvalidRequest, UnsupportedParameter
from shared.schemas import ServiceClass

MAX_PROMPTS = 64
MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIASES = 1024
MAX_TOP_LOGPROBS = 20
MAX_DEADLINE_MS = 7 * 24 * 3600 * 1000
MAX_TEMPLATE_KWARGS = 32
MAX_FAULTS = 10
# What a template is given by us: a request cannot replace it.
_GIVEN_TO_TEMPLATES = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize"}
)
MAX_FAULT_CHARS = 200


def _as_list(value: Any) -> Any:
    """One stop string is a list of one."""
    return [value] if isinstance(value, str) else value


StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
TokenId = Annotated[int, Field(ge=0)]
TokenKey = Annotated[str, Field(pattern="^[0-9]{1,9}$")]
Bias = Annotated[float, Field(ge=-100, le=100)]


class StreamOptions(StrictModel):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False  # harmless: there is nothing to obfuscate


class GenerationRequest(ConstrainedRequest):
    """What both endpoints have. `None` and absent are the same."""

    model: str = Field(min_length=1, max_length=256)
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, ge=0, le=1)
    top_k: int = Field(default=0, ge=-1, le=2**31 - 1)
    min_p: float = Field(default=0.0, ge=0, le=1)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    repetition_penalty: float = Field(default=1.0, gt=0, le=10)
    logit_bias: dict[TokenKey, Bias] = Field(default_factory=dict[TokenKey, Bias], max_length=MAX_LOGIT_BIASES)
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)
    stop: Annotated[
        list[StopString], BeforeValidator(_as_list, json_schema_input_type=list[StopString] | StopString)
    ] = Field(default_factory=list[StopString], max_length=MAX_STOPS)
    stop_token_ids: list[TokenId] = Field(default_factory=list[TokenId], max_length=MAX_STOP_TOKEN_IDS)
    min_tokens: int = Field(default=0, ge=0)
    ignore_eos: bool = False
    n: int = Field(default=1, ge=1, le=128)
    stream: bool = False
    stream_options: StreamOptions | None = None
    service_tier: Literal["auto", "default", "flex", "priority"] = "auto"
    deadline_ms: int | None = Field(default=None, ge=1, le=MAX_DEADLINE_MS)
    return_token_ids: bool = False

    @property
    def num_logprobs(self) -> int | None:
        """How many likeliest tokens to tell beside each of the answer; None: not even those."""
        raise NotImplementedError

    @property
    def service_class(self) -> ServiceClass:
        """`auto` leaves the choice to us: `default`."""
        return ServiceClass.DEFAULT if self.service_tier == "auto" else ServiceClass(self.service_tier)

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def is_heavy(self) -> bool:
        """Whether converting it takes more than its length says: a grammar is to be checked."""
        return self.is_constrained

    @property
    def continuous_usage(self) -> bool:
        """Usage so far in every chunk; only with `include_usage`."""
        return self.include_usage and self.stream_options is not None and self.stream_options.continuous_usage_stats

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError("at_stream_options", "is only allowed when stream is true")
        return self


class TemplateRequest(ToolRequest):
    """What a chat template is given beside the messages."""

    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict[str, Any], max_length=MAX_TEMPLATE_KWARGS)

    @field_validator("chat_template_kwargs", mode="after")
    @classmethod
    def _are_the_clients(cls, variables: dict[str, Any]) -> dict[str, Any]:
        for name in variables:
            if name in _GIVEN_TO_TEMPLATES or not name.isidentifier():
                raise PydanticCustomError("variables", "'{name}' cannot be set", {"name": name[:64]})
        return variables


class ChatCompletionRequest(GenerationRequest, TemplateRequest):
    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=MAX_TOP_LOGPROBS)

    @property
    def is_heavy(self) -> bool:
        return self.is_constrained or bool(self.tools)

    @property
    def num_logprobs(self) -> int | None:
        return self.top_logprobs if self.logprobs else None

    @model_validator(mode="after")
    def _one_limit(self) -> ChatCompletionRequest:
        both = self.max_tokens is not None and self.max_completion_tokens is not None
        if both and self.max_tokens != self.max_completion_tokens:
            raise PydanticCustomError("at_max_tokens", "must equal max_completion_tokens when both are given")
        return self

    @model_validator(mode="after")
    def _rivals_of_something(self) -> ChatCompletionRequest:
        if self.top_logprobs and not self.logprobs:
            raise PydanticCustomError("at_top_logprobs", "is only allowed when logprobs is true")
        return self


def _as_prompts(value: Any) -> Any:
    """Texts, or lists of token ids; one alone is a list of one."""
    prompts = [value] if isinstance(value, str) or (value and _are_token_ids(value)) else value
    if not isinstance(prompts, list):
        raise _no_prompt()
    prompts = cast("list[Any]", prompts)
    if not (all(isinstance(prompt, str) for prompt in prompts) or all(map(_are_token_ids, prompts))):
        raise _no_prompt()
    if len(prompts) > MAX_PROMPTS:
        about = {"count": len(prompts), "most": MAX_PROMPTS}
        raise PydanticCustomError("too_many_prompts", "{count} prompts are too many; at most {most} at once", about)
    return prompts


def _are_token_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(token_id) is int for token_id in cast("list[Any]", value))


def _no_prompt() -> PydanticCustomError:
    return PydanticCustomError("prompt_type", "Input should be a string, a list of token ids, or a list of either")


Text = Annotated[str, Field(min_length=1)]
TokenIds = Annotated[list[TokenId], Field(min_length=1)]
_SEVERAL = Field(min_length=1, max_length=MAX_PROMPTS)
Prompts = Text | TokenIds | Annotated[list[Text], _SEVERAL] | Annotated[list[TokenIds], _SEVERAL]


class CompletionRequest(GenerationRequest):
    prompt: Annotated[
        list[str] | list[list[int]],
        BeforeValidator(_as_prompts, json_schema_input_type=Prompts),
    ] = Field(min_length=1)
    logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    echo: bool = False
    max_tokens: int | None = Field(default=None, ge=0)

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @model_validator(mode="after")
    def _answers_something(self) -> CompletionRequest:
        if self.max_tokens == 0 and not self.echo:
            raise PydanticCustomError("at_max_tokens", "must be at least 1, or 0 where echo is true")
        return self


class EmbeddingRequest(StrictModel):
    """Read, so that a mistake in it is told as such; no served model makes embeddings."""

    model: str = Field(min_length=1, max_length=256)
    input: str | list[str] | list[int] | list[list[int]] = Field(min_length=1)
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(default=None, ge=1)
    user: str | None = None


Body = TypeVar("Body", ChatCompletionRequest, CompletionRequest, EmbeddingRequest)


def parse_chat(raw: bytes, *, is_strict: bool = False) -> ChatCompletionRequest:
    """Strict refuses what would have no effect."""
    fields = honoured_fields(json_object(raw), UNSUPPORTED_IN_CHAT, is_strict=is_strict)
    return _validated(ChatCompletionRequest, fields)


def parse_completion(raw: bytes, *, is_strict: bool = False) -> CompletionRequest:
    """As `parse_chat`."""
    fields = honoured_fields(json_object(raw), UNSUPPORTED_IN_COMPLETIONS, is_strict=is_strict)
    return _validated(CompletionRequest, fields)


def parse_embedding(raw: bytes) -> EmbeddingRequest:
    return _validated(EmbeddingRequest, json_object(raw))


def _validated(kind: type[Body], fields: dict[str, Any]) -> Body:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise invalid_request(error.errors(include_url=False, include_context=False, include_input=False)) from None


def invalid_request(faults: Sequence[ErrorDetails]) -> InvalidRequest:
    """The first faults in words, bounded; `param` is the first. A wrong type hides no unknown field."""
    words = "; ".join(f"{_param(fault)}: {_words(fault)}"[:MAX_FAULT_CHARS] for fault in faults[:MAX_FAULTS])
    if len(faults) > MAX_FAULTS:
        words += f"; and {len(faults) - MAX_FAULTS} more"
    first = faults[0]
    if first["type"] == "unsupported_parameter":
        return UnsupportedParameter(words, param=_param(first))
    code = "unknown_parameter" if first["type"] == "extra_forbidden" else None
    return InvalidRequest(words, param=_param(first), code=code)


def _param(fault: ErrorDetails) -> str:
    """`messages[0].content`; a check of the whole body names its field by its type, `at_<field>`."""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"]).removeprefix(".")
    return (path or fault["type"].removeprefix("at_"))[: MAX_FAULT_CHARS // 2]


def _words(fault: ErrorDetails) -> str:
    return "is not a known field" if fault["type"] == "extra_forbidden" else fault["msg"]
