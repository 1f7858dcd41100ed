"""The OpenAPI document, completed: what FastAPI derives from the routes, and what they really answer.

    errors     every status of the error table, in the one shape, for all that needs a key; no 422, which is never sent
    answers    answers.py; an endpoint that is not there keeps what its route declares
    security   bearer keys, and the operator's

docs/api.md is made from this document (page.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from gateway.http.errors import UNROUTED
from gateway.reference.answers import ANSWERS, Answer, Error, OperatorAnswer
from gateway.reference.failures import failures

_Node = dict[str, Any]
_REF = "#/components/schemas/{model}"
_WORDS = {
    400: "The request cannot succeed as it is.",
    401: "No API key, or one that is not known.",
    403: "A key that may not do this.",
    404: "There is no such thing, or it is another tenant's.",
    405: "Another method.",
    408: "The request did not come in time.",
    409: "In conflict with what went before.",
    413: "The body is too large.",
    415: "A body of another kind.",
    429: "Later: `retry-after` says when.",
    431: "The request's head is too large.",
    499: "The request was cancelled.",
    500: "A fault of ours, or an answer that failed.",
    503: "Not now: `retry-after` says when.",
    504: "The request's deadline passed.",
}


def install_document(app: FastAPI) -> None:
    """After all routes: /openapi.json is the completed document from here on."""
    derive = app.openapi
    made: list[_Node] = []

    def openapi() -> _Node:
        if not made:
            made.append(completed(derive))
        return made[0]

    app.openapi = openapi


def completed(derive: Callable[[], _Node]) -> _Node:
    document = derive()
    schemas = cast("_Node", document.setdefault("components", {}).setdefault("schemas", {}))
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    models = [answer.model for answer in ANSWERS.values() if answer.model] + [Error, OperatorAnswer]
    unique = dict.fromkeys(models)
    _, definitions = models_json_schema([(model, "serialization") for model in unique], ref_template=_REF)
    schemas |= definitions["$defs"]
    document["components"]["responses"] = _error_responses()
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            _complete(path, method, operation)
    return document


def _complete(path: str, method: str, operation: _Node) -> None:
    responses = cast("_Node", operation["responses"])
    responses.pop("422", None)
    if path == "/metrics":
        responses["200"] = {"description": "Prometheus' text format", "content": {"text/plain": {}}}
    answer = ANSWERS.get((method, path), Answer(OperatorAnswer) if path.startswith("/operator/") else None)
    if answer is not None:
        responses["200"] = {"description": "The answer", "content": _content(answer)}
        if answer.unready is not None:
            responses["503"] = {"description": "Not ready", "content": _content(Answer(answer.unready))}
    if path.startswith(("/v1/", "/operator/", "/tokenize", "/detokenize")):
        operation["security"] = [{"key": []}, {}] if not path.startswith("/operator/") else [{"key": []}]
        for status in _WORDS:
            responses.setdefault(str(status), {"$ref": f"#/components/responses/{status}"})
    else:
        responses.setdefault("400", {"$ref": "#/components/responses/400"})


def _content(answer: Answer) -> _Node:
    content: _Node = {}
    if answer.model is not None:
        content["application/json"] = {"schema": {"$ref": _REF.format(model=answer.model.__name__)}}
    if answer.is_streamed:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    if answer.is_bytes:
        content["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
    return content


def _error_responses() -> _Node:
    codes: dict[int, list[str]] = {status: [code] for status, code in UNROUTED.items()}
    for failure in failures():
        codes.setdefault(failure.status, []).append(failure.code)
    content = {"application/json": {"schema": {"$ref": _REF.format(model="Error")}}}
    return {
        str(status): {
            "description": f"{words} Codes: {', '.join(dict.fromkeys(codes.get(status, [])))}.",
            "content": content,
        }
        for status, words in _WORDS.items()
    }
