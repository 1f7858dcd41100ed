"""The bodies of the batch endpoints: what makes a batch, checked; batches and files as OpenAI's objects. Pure."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationError

from gateway.files.library import MAX_TTL_S, MIN_TTL_S
from gateway.openai.body import json_object
from gateway.openai.messages import StrictModel
from gateway.openai.protocol import invalid_request
from gateway.store.batch_rows import StoredBatch
from gateway.store.file_rows import StoredFile

MAX_METADATA = 16
# What a batch may be of, where the gateway has it.
ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")


class OutputExpiry(StrictModel):
    """After what its output and error files are deleted."""

    anchor: Literal["created_at"]
    seconds: int = Field(ge=MIN_TTL_S, le=MAX_TTL_S)


class BatchRequest(StrictModel):
    input_file_id: str = Field(min_length=1, max_length=128)
    endpoint: str = Field(max_length=64)
    completion_window: Literal["24h"]
    metadata: dict[str, str] = Field(default_factory=dict[str, str], max_length=MAX_METADATA)
    output_expires_after: OutputExpiry | None = None


def parse_batch(raw: bytes) -> BatchRequest:
    """Raises InvalidRequest naming the field."""
    try:
        return BatchRequest.model_validate(json_object(raw))
    except ValidationError as error:
        raise invalid_request(error.errors(include_url=False, include_context=False, include_input=False)) from None


def batch_object(batch: StoredBatch) -> dict[str, Any]:
    """As the API shows it; every time there is, null where it has not come to it."""
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": {"object": "list", "data": batch.faults} if batch.faults else None,
        "input_file_id": batch.input_file_id,
        "completion_window": "24h",
        "status": batch.status.value,
        "output_file_id": batch.output_file_id or None,
        "error_file_id": batch.error_file_id or None,
        "created_at": batch.created_at_ms // 1000,
        "in_progress_at": _second(batch, "in_progress"),
        "expires_at": batch.window_ends_ms // 1000,
        "finalizing_at": _second(batch, "finalizing"),
        "completed_at": _second(batch, "completed"),
        "failed_at": _second(batch, "failed"),
        "expired_at": _second(batch, "expired"),
        "cancelling_at": _second(batch, "cancelling"),
        "cancelled_at": _second(batch, "cancelled"),
        "request_counts": {
            "total": batch.num_lines,
            "completed": batch.num_completed,
            "failed": batch.num_failed,
        },
        "metadata": batch.metadata or None,
        "usage": _usage(batch.usage) if batch.usage else None,
    }


def file_object(file: StoredFile) -> dict[str, Any]:
    expiry = {} if file.expires_at_ms is None else {"expires_at": file.expires_at_ms // 1000}
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.num_bytes,
        "created_at": file.created_at_ms // 1000,
        **expiry,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
    }


def list_object(items: list[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    ids = [item["id"] for item in items]
    return {
        "object": "list",
        "data": items,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
        "has_more": has_more,
    }


def _usage(used: dict[str, int]) -> dict[str, Any]:
    return {
        "input_tokens": used["input_tokens"],
        "input_tokens_details": {"cached_tokens": used["cached_tokens"]},
        "output_tokens": used["output_tokens"],
        "output_tokens_details": {"reasoning_tokens": used["reasoning_tokens"]},
        "total_tokens": used["input_tokens"] + used["output_tokens"],
    }


def _second(batch: StoredBatch, status: str) -> int | None:
    at_ms = batch.times.get(status)
    return None if at_ms is None else at_ms // 1000
