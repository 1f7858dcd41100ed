"""The exception tree. Every error that may reach a user or another process has a stable code.

    HeadraceError
    ├── InvalidRequest          invalid_request_error          the request can never succeed as it is
    │   ├── ContextLengthExceeded   context_length_exceeded
    │   ├── BodyTooLarge            request_too_large
    │   ├── HeadersTooLarge         headers_too_large
    │   ├── UnsupportedMediaType    unsupported_media_type     a body of another kind than the endpoint reads
    │   ├── ReceiveTimeout          request_timeout            the request did not come in time
    │   ├── UnsupportedParameter    unsupported_parameter
    │   └── AdapterRefused          adapter_refused            and codes that say more: too_many_adapters, ..
    ├── AuthenticationFailed    invalid_api_key                no key, or one that opens nothing
    ├── PermissionDenied        permission_denied              a good key that may not do this
    ├── ModelNotFound           model_not_found
    ├── RequestNotFound         request_not_found
    │   └── ResponseNotFound        response_not_found
    ├── RouteNotFound           route_not_found
    ├── WorkerNotFound          worker_not_found
    ├── FileNotFound            file_not_found
    ├── BatchNotFound           batch_not_found
    ├── IdempotencyConflict     idempotency_key_reused         the key belongs to a request with another body
    ├── Overloaded              rate_limit_exceeded            a bound of the queue is reached; try again later
    │   ├── RateLimited             rate_limit_exceeded            a limit of the tenant is reached
    │   ├── QueueFull               rate_limit_exceeded            a bound of the model's queue is reached
    │   └── DeadlineUnreachable     deadline_unreachable           too much waits before it to meet its deadline
    ├── Unavailable             server_is_overloaded           Redis is away, or no model is registered
    ├── RequestFailed           server_error                   accepted, then ended without an answer
    │   ├── DeadlineExceeded        deadline_exceeded
    │   ├── RequestCancelled        request_cancelled
    │   └── StreamContradiction     stream_contradiction       what the client saw is not what the journal says
    └── ConfigurationError      configuration_error            a process refuses to start

Knows no HTTP and no Redis: gateway/http/errors.py maps this tree to statuses, in one table.
"""

from __future__ import annotations


class HeadraceError(Exception):
    """Root of the tree. `param` names the field at fault, where there is one."""

    code = "server_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class InvalidRequest(HeadraceError):
    code = "invalid_request_error"


class ContextLengthExceeded(InvalidRequest):
    code = "context_length_exceeded"


class BodyTooLarge(InvalidRequest):
    code = "request_too_large"


class HeadersTooLarge(InvalidRequest):
    code = "headers_too_large"


class UnsupportedMediaType(InvalidRequest):
    code = "unsupported_media_type"


class ReceiveTimeout(InvalidRequest):
    code = "request_timeout"


class UnsupportedParameter(InvalidRequest):
    code = "unsupported_parameter"


class AdapterRefused(InvalidRequest):
    """A worker cannot load an adapter. Codes: adapter_not_found, adapter_unreadable, adapter_unsupported,
    adapter_shape_mismatch, adapter_rank_too_high, adapter_name_taken, too_many_adapters, adapters_unsupported."""

    code = "adapter_refused"


class AuthenticationFailed(HeadraceError):
    code = "invalid_api_key"


class PermissionDenied(HeadraceError):
    code = "permission_denied"


class ModelNotFound(HeadraceError):
    code = "model_not_found"


class RequestNotFound(HeadraceError):
    code = "request_not_found"


class ResponseNotFound(RequestNotFound):
    code = "response_not_found"


class RouteNotFound(HeadraceError):
    code = "route_not_found"


class WorkerNotFound(HeadraceError):
    code = "worker_not_found"


class FileNotFound(HeadraceError):
    code = "file_not_found"


class BatchNotFound(HeadraceError):
    code = "batch_not_found"


class IdempotencyConflict(HeadraceError):
    code = "idempotency_key_reused"


class Overloaded(HeadraceError):
    """A bound of the queue is reached. `retry_after_s` comes from the measured drain rate."""

    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, retry_after_s: float, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s


class RateLimited(Overloaded):
    """`retry_after_s` is exact: by then the tenant's bucket has enough, if nobody else takes it."""


class QueueFull(Overloaded):
    """Of this model, whoever asks: another one may have room."""


class DeadlineUnreachable(Overloaded):
    """Refused at the door: at the measured rate it could not be met. `retry_after_s`: when it could be."""

    code = "deadline_unreachable"


class Unavailable(HeadraceError):
    code = "server_is_overloaded"

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RequestFailed(HeadraceError):
    code = "server_error"


class DeadlineExceeded(RequestFailed):
    code = "deadline_exceeded"


class RequestCancelled(RequestFailed):
    code = "request_cancelled"


class StreamContradiction(RequestFailed):
    code = "stream_contradiction"


class ConfigurationError(HeadraceError):
    code = "configuration_error"
