"""What each endpoint answers, as models for the OpenAPI document: the required keys and their types.

Answers are spliced from bytes or built as dicts, so these are held to what is served by tests that read real answers
(schemathesis in `python -m loadtest fuzz`, and tests/unit/gateway/test_reference.py). To document an endpoint's answer,
add it to ANSWERS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from gateway.reference.token_answers import Detokenized, Rendered, Tokenized, TokenizerInfo

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "function_call"]


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class CompletionTokensDetails(BaseModel):
    reasoning_tokens: int


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class Message(BaseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None


class ChatChoice(BaseModel):
    index: int
    message: Message
    logprobs: dict[str, Any] | None
    finish_reason: FinishReason


class TextChoice(BaseModel):
    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: FinishReason


class _Answer(BaseModel):
    id: str
    created: int
    model: str
    system_fingerprint: str
    service_tier: str
    usage: Usage


class ChatCompletion(_Answer):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class Completion(_Answer):
    object: Literal["text_completion"]
    choices: list[TextChoice]


class Model(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[Model]


class Response(BaseModel):
    """`output`: messages, calls of functions and reasoning, as items."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    model: str
    output: list[dict[str, Any]]
    usage: dict[str, Any] | None
    error: dict[str, str] | None
    incomplete_details: dict[str, str] | None
    background: bool
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, Any]
    service_tier: str
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_p: float
    truncation: Literal["disabled"]


class DeletedResponse(BaseModel):
    id: str
    object: Literal["response"]
    deleted: bool


class ItemList(BaseModel):
    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokens(BaseModel):
    object: Literal["response.input_tokens"]
    input_tokens: int


class CancelledRequest(BaseModel):
    id: str
    object: Literal["request"]
    status: str


class RequestStanding(CancelledRequest):
    created: int
    model: str
    service_tier: str
    queue: dict[str, int | None] | None
    worker: str | None
    attempts: int
    prompt_tokens: int
    completion_tokens: int
    timings: dict[str, int | None]
    events: list[dict[str, Any]]
    error: Any


class File(BaseModel):
    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: Literal["processed"]


class DeletedFile(BaseModel):
    id: str
    object: Literal["file"]
    deleted: bool


class BatchRequestCounts(BaseModel):
    total: int
    completed: int
    failed: int


class Batch(BaseModel):
    id: str
    object: Literal["batch"]
    endpoint: str
    errors: dict[str, Any] | None
    input_file_id: str
    completion_window: Literal["24h"]
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchRequestCounts
    metadata: dict[str, str] | None
    usage: dict[str, Any] | None


class _Page(BaseModel):
    object: Literal["list"]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FilePage(_Page):
    data: list[File]


class BatchPage(_Page):
    data: list[Batch]


class Liveness(BaseModel):
    status: Literal["ok"]


class Readiness(BaseModel):
    status: Literal["ok", "unavailable"]


class OperatorAnswer(BaseModel):
    """`redis_cli`: the commands by which the same can be read by hand."""

    data: Any
    redis_cli: list[str]


class ErrorFields(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(BaseModel):
    error: ErrorFields


@dataclass(frozen=True, slots=True)
class Answer:
    """`is_streamed`: also, or only (`model` None), as server-sent events. `is_bytes`: a file's own."""

    model: type[BaseModel] | None
    is_streamed: bool = False
    is_bytes: bool = False
    unready: type[BaseModel] | None = None


ANSWERS: dict[tuple[str, str], Answer] = {
    ("post", "/v1/chat/completions"): Answer(ChatCompletion, is_streamed=True),
    ("post", "/v1/completions"): Answer(Completion, is_streamed=True),
    ("post", "/v1/responses"): Answer(Response, is_streamed=True),
    ("post", "/v1/responses/input_tokens"): Answer(InputTokens),
    ("get", "/v1/responses/{response_id}"): Answer(Response, is_streamed=True),
    ("delete", "/v1/responses/{response_id}"): Answer(DeletedResponse),
    ("post", "/v1/responses/{response_id}/cancel"): Answer(Response),
    ("get", "/v1/responses/{response_id}/input_items"): Answer(ItemList),
    ("get", "/v1/models"): Answer(ModelList),
    ("get", "/v1/models/{name}"): Answer(Model),
    ("post", "/v1/chat/completions/render"): Answer(Rendered),
    ("post", "/tokenize"): Answer(Tokenized),
    ("post", "/detokenize"): Answer(Detokenized),
    ("get", "/tokenizer_info"): Answer(TokenizerInfo),
    ("get", "/v1/requests/{request_id}"): Answer(RequestStanding),
    ("post", "/v1/requests/{request_id}/cancel"): Answer(CancelledRequest),
    ("get", "/v1/requests/{request_id}/events"): Answer(None, is_streamed=True),
    ("post", "/v1/files"): Answer(File),
    ("get", "/v1/files"): Answer(FilePage),
    ("get", "/v1/files/{file_id}"): Answer(File),
    ("delete", "/v1/files/{file_id}"): Answer(DeletedFile),
    ("get", "/v1/files/{file_id}/content"): Answer(None, is_bytes=True),
    ("post", "/v1/batches"): Answer(Batch),
    ("get", "/v1/batches"): Answer(BatchPage),
    ("get", "/v1/batches/{batch_id}"): Answer(Batch),
    ("post", "/v1/batches/{batch_id}/cancel"): Answer(Batch),
    ("get", "/health/live"): Answer(Liveness),
    ("get", "/health/ready"): Answer(Readiness, unready=Readiness),
}
